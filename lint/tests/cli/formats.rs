//! What each output format prints.

use serde_json::{Value, json};

use crate::support::{FAULT, MENDABLE, RULE, Scratch};

fn scratch() -> Scratch {
    Scratch::new(&[
        ("b/two.py", MENDABLE),
        ("a.py", &format!("\n\t{}", "pass\n")),
        ("one.py", FAULT),
    ])
}

#[test]
fn full_shows_source_why_and_what_to_do() {
    let scratch = Scratch::new(&[("one.py", "x = 1  # ddp-lint: allow(unused-suppresion)\n")]);
    let run = scratch.run(&[]);
    let expected = "\
unknown-suppression

  ⚠ `unused-suppresion` is no rule
  ╰─▶ this comment suppresses nothing
   ╭─[one.py:1:26]
 1 │ x = 1  # ddp-lint: allow(unused-suppresion)
   ·                          ─────────────────
   ╰────
  help: did you mean `unused-suppression`?

1 warning in 2 files
";
    assert_eq!(run.stdout, expected);
}

#[test]
fn colours_come_when_they_are_wanted() {
    let scratch = scratch();
    assert!(!scratch.run(&[]).stdout.contains('\x1b'));
    assert!(scratch.run(&["--color", "always"]).stdout.contains('\x1b'));
    let forced = |name: &str, value: &str| {
        let mut command = scratch.command();
        crate::support::run(command.env(name, value).env("CLICOLOR_FORCE", "1"), "").stdout
    };
    assert!(forced("X", "").contains('\x1b'));
    assert!(!forced("NO_COLOR", "1").contains('\x1b'));
}

#[test]
fn rules_are_links_where_the_terminal_shows_links() {
    let scratch = scratch();
    let run = |force: &str| {
        let mut command = scratch.command();
        command.env("FORCE_HYPERLINK", force).env("XDG_CACHE_HOME", scratch.path(".cache"));
        crate::support::run(command.arg("check"), "").stdout
    };
    let page = scratch.path(".cache/ddp-lint").join(env!("CARGO_PKG_VERSION"));
    let page = page.join("rules").join(RULE).with_extension("md");
    let link = format!("\x1b]8;;file://{}\x1b\\{RULE}\x1b]8;;\x1b\\", page.display());
    assert!(!run("0").contains(&link));
    assert!(!page.exists(), "nothing is written that is not asked for");
    let linked = run("1");
    assert!(linked.contains(&link), "{linked}");
    assert!(page.is_file());
    assert!(!scratch.run(&["check"]).stdout.contains('\x1b'));
}

#[test]
fn concise_is_one_line_each_sorted_by_path() {
    let run = scratch().run(&["--output-format", "concise"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{run:?}");
    assert!(lines[0].starts_with("b/two.py:1:26: warning[unused-suppression] "), "{run:?}");
    assert!(lines[0].ends_with(" [fixable]"), "{run:?}");
    assert!(lines[1].starts_with("one.py:1:27: warning[unknown-suppression] "), "{run:?}");
    assert_eq!(lines[2], "2 warnings in 4 files; --fix mends 1");
}

#[test]
fn json_has_exactly_the_promised_shape() {
    let findings = scratch().findings(&[]);
    let expected = json!({
        "rule": "unused-suppression",
        "level": "warning",
        "harm": "noise",
        "message": "`unknown-suppression` finds nothing here that this comment could allow",
        "why": "a suppression that is left over hides the next fault of that kind",
        "help": "remove it; a comment counts on the first or last line of the statement, or \
                 alone on the line above it",
        "path": "b/two.py",
        "start": { "line": 1, "column": 26 },
        "end": { "line": 1, "column": 45 },
        "related": [],
        "fix": {
            "applicability": "safe",
            "title": "remove the suppression",
            "edits": [{
                "path": "b/two.py",
                "start": { "line": 1, "column": 6 },
                "end": { "line": 1, "column": 46 },
                "replacement": "",
            }],
        },
    });
    assert_eq!(findings[0], expected);
    // Columns count characters: é and 🦀 are one each.
    assert_eq!(findings[1]["start"], json!({ "line": 1, "column": 27 }));
    assert_eq!(findings[1]["fix"], Value::Null);
    assert_eq!(scratch().run(&["--output-format", "json", "a.py"]).stdout, "[]\n");
}

#[test]
fn the_order_does_not_depend_on_threads_or_arguments() {
    let scratch = Scratch::new(&[]);
    for n in 0..40 {
        scratch.write(&format!("d{}/f{n}.py", n % 7), FAULT.repeat(3));
    }
    let with_threads = |n: &str, paths: &[&str]| {
        let arguments = [&["--output-format", "json"], paths].concat();
        let mut command = scratch.command();
        crate::support::run(command.args(arguments).env("RAYON_NUM_THREADS", n), "").stdout
    };
    let one = with_threads("1", &["."]);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&one).unwrap().len(), 120);
    assert_eq!(one, with_threads("4", &["."]));
    let folders = ["d6", "d3", "d0", "d1", "d5", "d4", "d2"];
    assert_eq!(one, with_threads("3", &folders));
}

#[test]
fn sarif_names_rules_places_and_fixes() {
    let run = scratch().run(&["--output-format", "sarif"]);
    let log: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let one = &log["runs"][0];
    let results = one["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for result in results {
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(one["tool"]["driver"]["rules"][index]["id"], result["ruleId"]);
    }
    let place = &results[0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "b/two.py");
    assert_eq!(place["region"]["startColumn"], 26);
    let change = &results[0]["fixes"][0]["artifactChanges"][0];
    assert_eq!(change["replacements"][0]["deletedRegion"]["startColumn"], 6);
}

#[test]
fn fingerprints_survive_shifted_lines_and_differ_from_each_other() {
    let scratch = Scratch::new(&[("one.py", &FAULT.repeat(2))]);
    let prints = || {
        let run = scratch.run(&["--output-format", "sarif"]);
        let log: Value = serde_json::from_str(&run.stdout).unwrap();
        let results = log["runs"][0]["results"].as_array().unwrap().clone();
        let print = |result: &Value| result["partialFingerprints"]["ddp-lint/v1"].to_string();
        results.iter().map(print).collect::<Vec<_>>()
    };
    let before = prints();
    assert_ne!(before[0], before[1]);
    scratch.write("one.py", format!("import os\n\n\n{FAULT}y = 2\n{FAULT}"));
    assert_eq!(prints(), before);
}

#[test]
fn github_prints_workflow_commands() {
    let run = scratch().run(&["--output-format", "github"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 2);
    let start = "::warning file=one.py,line=1,col=27,endColumn=39,title=ddp-lint%3A \
                 unknown-suppression::`no-such-rule` is no rule%0A";
    assert!(lines[1].starts_with(start), "{run:?}");
}

#[test]
fn gitlab_prints_a_code_quality_report() {
    let run = scratch().run(&["--output-format", "gitlab"]);
    let issues: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(issues[1]["check_name"], RULE);
    assert_eq!(issues[1]["severity"], "minor");
    assert_eq!(
        issues[1]["location"],
        json!({ "path": "one.py", "lines": { "begin": 1, "end": 1 } })
    );
    assert_ne!(issues[0]["fingerprint"], issues[1]["fingerprint"]);
}

#[test]
fn rustc_messages_carry_suggestions() {
    let main = "fn main() {} // ddp-lint: allow(unknown-suppression)\n";
    let scratch = Scratch::new(&[("src/main.rs", main)]);
    let run = scratch.run(&["--output-format", "rustc-json"]);
    let line: Value = serde_json::from_str(run.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(line["reason"], "compiler-message");
    let message = &line["message"];
    assert_eq!(message["code"]["code"], "ddp::unused-suppression");
    assert_eq!(message["spans"][0]["file_name"], "src/main.rs");
    let children = message["children"].as_array().unwrap();
    let suggestion = &children.last().unwrap()["spans"][0];
    assert_eq!(suggestion["suggestion_applicability"], "MachineApplicable");
    let byte = |key: &str| suggestion[key].as_u64().unwrap() as usize;
    assert_eq!(&main[byte("byte_start")..byte("byte_end")], &main[12..52]);
}

#[test]
fn statistics_count_by_rule() {
    let scratch = Scratch::new(&[("a.py", &FAULT.repeat(2)), ("b.py", MENDABLE)]);
    let run = scratch.run(&["--statistics"]);
    let expected = "2  warning  unknown-suppression\n1  warning  unused-suppression  fixable\n\
                    3 warnings in 3 files; --fix mends 1\n";
    assert_eq!((run.status, &*run.stdout), (1, expected));
    let machine = scratch.run(&["--statistics", "--output-format", "json"]);
    let rows: Vec<Value> = serde_json::from_str(&machine.stdout).unwrap();
    assert_eq!(rows[0]["count"], 2);
    assert_eq!(rows[1]["fixable"], 1);
}

#[test]
fn output_goes_to_a_file_when_asked() {
    let scratch = scratch();
    let run = scratch.run(&["--output-format", "json", "--output-file", "found.json"]);
    assert_eq!((run.status, &*run.stdout), (1, ""));
    let findings: Vec<Value> = serde_json::from_str(&scratch.read("found.json")).unwrap();
    assert_eq!(findings.len(), 2);
    let run = scratch.run(&["--color", "always", "-o", "found.txt"]);
    assert_eq!(run.stdout, "2 warnings in 4 files; --fix mends 1\n");
    assert!(!scratch.read("found.txt").contains('\x1b'));
}

#[test]
fn paths_are_relative_to_the_working_folder() {
    let scratch = scratch();
    let mut command = scratch.command();
    command.current_dir(scratch.path("b")).args(["--output-format", "concise", ".."]);
    let run = crate::support::run(&mut command, "");
    let paths: Vec<&str> =
        run.stdout.lines().filter_map(|line| line.split_once(':')).map(|(path, _)| path).collect();
    assert_eq!(paths, ["two.py", "../one.py"]);
}

#[test]
fn notebooks_are_told_by_cell_and_line() {
    let cells = json!({ "cells": [
        { "cell_type": "markdown", "source": ["# Title\n"] },
        { "cell_type": "code", "source": ["%matplotlib inline\n", "x = 1\n"] },
        { "cell_type": "code", "source": ["y = 2\n", "z = 3  # ddp-lint: allow(oops)"] },
    ]});
    let scratch = Scratch::new(&[("train.ipynb", &cells.to_string())]);
    let run = scratch.run(&["--output-format", "concise"]);
    assert!(run.stdout.starts_with("train.ipynb:cell 3:2:26: warning"), "{run:?}");
    let finding = &scratch.findings(&[])[0];
    assert_eq!(finding["cell"], 3);
    assert_eq!(finding["start"]["line"], 2);
}

#[test]
fn line_ends_marks_and_tabs_do_not_shift_places() {
    let scratch = Scratch::new(&[]);
    scratch.write("crlf.py", "x = 1\r\nif x:\r\n\ty = 2  # ddp-lint: allow(oops)\r\n");
    scratch.write("bom.py", "\u{feff}x = 1  # ddp-lint: allow(oops)\n");
    let run = scratch.run(&["--output-format", "concise"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].starts_with("bom.py:1:26: "), "{run:?}");
    assert!(lines[1].starts_with("crlf.py:3:27: "), "{run:?}");
    let full = scratch.run(&["crlf.py"]).stdout;
    assert!(!full.contains('\r'), "{full:?}");
}

#[test]
fn compiler_messages_come_along_when_asked() {
    let scratch = Scratch::new(&[
        ("Cargo.toml", "[package]\nname = \"one\"\nedition = \"2024\"\n[workspace]\n"),
        ("src/main.rs", "fn main() { let x: i32 = \"\"; } // ddp-lint: allow(oops)\n"),
    ]);
    let cargo = std::path::Path::new(env!("CARGO_BIN_EXE_cargo-ddp-lint"));
    let mut command = scratch.command_of(cargo);
    command.args(["ddp-lint", "--message-format=json", "--with-check", "--", "--offline"]);
    let run = crate::support::run(&mut command, "");
    let lines = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let codes: Vec<String> = lines
        .filter(|line| line["reason"] == "compiler-message")
        .filter_map(|line| line["message"]["code"]["code"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(codes, ["E0308", "ddp::unknown-suppression"], "{run:?}");
}

/// Applies what rustc calls machine applicable, as `cargo fix` does.
fn applied(messages: &str, text: &str) -> String {
    let mut edits = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        for child in message["message"]["children"].as_array().unwrap() {
            for span in child["spans"].as_array().unwrap() {
                if span["suggestion_applicability"] == "MachineApplicable" {
                    let byte = |key: &str| span[key].as_u64().unwrap() as usize;
                    let new = span["suggested_replacement"].as_str().unwrap().to_owned();
                    edits.push((byte("byte_start")..byte("byte_end"), new));
                }
            }
        }
    }
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    edits.into_iter().fold(text.to_owned(), |mut text, (range, new)| {
        text.replace_range(range, &new);
        text
    })
}

#[test]
fn suggestions_applied_as_cargo_fix_does_are_what_fix_makes() {
    let text = "fn é() {} // ddp-lint: allow(unknown-suppression)\n\nfn main() {\n    \
                // ddp-lint: allow(unknown-suppression)\n    é();\n}\n";
    let scratch = Scratch::new(&[("src/main.rs", text)]);
    let run = scratch.run(&["--message-format", "json"]);
    let by_client = applied(&run.stdout, text);
    assert_eq!(scratch.run(&["--fix"]).status, 0);
    assert_eq!(by_client, scratch.read("src/main.rs"));
    assert_eq!(by_client, "fn é() {}\n\nfn main() {\n    é();\n}\n");
}

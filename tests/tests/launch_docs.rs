//! `docs/launching.md` against the launcher: flags exist, quoted messages are said.

use std::collections::BTreeSet;

use ddp_tests::launch::ddp_run;
use ddp_tests::repository;

/// Flags of other programs that the page names too.
const FOREIGN: &[&str] = &[
    "--cpu-bind",
    "--cpus-per-task",
    "--duplicate-stderr-filters",
    "--duplicate-stdout-filters",
    "--epochs",
    "--event-log-handler",
    "--gpus-per-node",
    "--gpus-per-task",
    "--local-addr",
    "--logs-specs",
    "--monitor-interval",
    "--no-python",
    "--nodes",
    "--ntasks-per-node",
    "--numa-binding",
    "--rdzv-conf",
    "--release",
    "--run-path",
    "--shm-size",
    "--signal",
    "--start-method",
];

fn page() -> String {
    repository::read(&repository::root().join("docs/launching.md"))
}

/// Words that begin with two dashes.
fn flags(text: &str) -> BTreeSet<&str> {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    text.match_indices("--")
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c == '-' || c.is_alphanumeric()))
        .map(|(at, _)| {
            let rest = &text[at..];
            rest.find(|letter| !is_letter(letter)).map_or(rest, |end| &rest[..end])
        })
        .filter(|flag| flag.len() > 2 && !flag.starts_with("---"))
        .collect()
}

#[test]
fn the_page_tells_all_flags_and_no_others() {
    let help = ddp_run(["--help"]).run(5.0).out;
    let page = page();
    let known = flags(&help);
    let foreign: BTreeSet<_> = FOREIGN.iter().copied().collect();
    let unknown: Vec<_> = flags(&page)
        .into_iter()
        .filter(|flag| !known.contains(flag) && !foreign.contains(flag))
        .collect();
    assert_eq!(unknown, Vec::<&str>::new());
    let told = flags(&page);
    let usual = ["--help", "--version"];
    let untold: Vec<_> =
        known.iter().filter(|flag| !told.contains(*flag) && !usual.contains(flag)).collect();
    assert_eq!(untold, Vec::<&&str>::new());
}

#[test]
fn every_quoted_message_is_said() {
    let page = page();
    let start = page.find("What `ddp-run` says:").unwrap();
    let table = &page[start..page.find("What libtorch says").unwrap()];
    let sources = repository::files(&repository::root().join("runtime/launch/src"), "rs");
    // As the compiler joins a string over lines; the unit is a node or a rank.
    let code: String = sources.iter().map(|path| repository::read(path)).collect();
    let code: String = code.split("\\\n").map(str::trim_start).collect();
    let code = [code.replace("{unit}", "node"), code.replace("{unit}", "rank")].concat();
    let messages: Vec<_> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next())
        .flat_map(|cell| cell.split("`, `"))
        .map(|message| message.trim_end_matches('`'))
        .collect();
    assert!(messages.len() >= 12, "{messages:?}");
    for message in messages {
        assert!(code.contains(message), "the launcher never says {message:?}");
    }
}

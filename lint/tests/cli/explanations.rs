//! `explain` and `rules`.

use serde_json::Value;

use crate::support::Scratch;

#[test]
fn a_rule_is_explained_without_marks() {
    let run = Scratch::new(&[]).run(&["explain", "unused-suppression"]);
    assert_eq!(run.status, 0);
    assert!(run.stdout.starts_with("unused-suppression  (warning, noise)\n"), "{run:?}");
    assert!(run.stdout.contains("Python, at fault:"), "{run:?}");
    assert!(!run.stdout.contains("# ~"), "{run:?}");
    assert!(!run.stdout.contains("```"), "{run:?}");
}

#[test]
fn rules_are_listed_in_three_forms() {
    let scratch = Scratch::new(&[]);
    let table = scratch.run(&["rules"]).stdout;
    let json: Vec<Value> = serde_json::from_str(&scratch.run(&["rules", "--json"]).stdout).unwrap();
    let markdown = scratch.run(&["rules", "--markdown"]).stdout;
    assert_eq!(table.lines().count(), json.len());
    for rule in &json {
        let name = rule["name"].as_str().unwrap();
        assert!(table.contains(name), "{name}");
        assert!(markdown.contains(&format!("\n## {name}\n")), "{name}");
        assert!(markdown.contains(&format!("[`{name}`](#{name})")), "{name}");
    }
    assert!(!markdown.contains("# ~") && !markdown.contains("//~"));
}

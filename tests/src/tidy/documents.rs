//! Checks of prose: what it names must exist, and it names no place of one computer.

use super::Complaint;

/// Endings of files that documents name without their folder.
const ENDINGS: [&str; 7] = [".rs", ".md", ".toml", ".cc", ".h", ".py", ".csv"];

/// Paths in back quotes that `exists` does not know. A word is a path when it has a `/` and nothing
/// that paths do not have, or one of the usual endings.
pub fn missing_paths(text: &str, exists: impl Fn(&str) -> bool) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if in_block {
            continue;
        }
        let quoted = line.split('`').skip(1).step_by(2);
        let missing = quoted.filter(|word| is_path(word) && !exists(word));
        complaints.extend(missing.map(|word| Complaint::new(index + 1, format!("no `{word}`"))));
    }
    complaints
}

fn is_path(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    word.chars().all(plain)
        && !word.starts_with('/')
        && (word.contains('/') || ENDINGS.iter().any(|ending| word.ends_with(ending)))
}

/// Places that only one computer has: somebody's home, a folder at the root of the disk.
pub fn machine_places(text: &str) -> Vec<Complaint> {
    let homes = ["root", "home", "Users", "work"].map(|name| format!("/{name}/"));
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let named = |home: &str| {
            line.match_indices(home).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "_.-}*)".contains(c))
            })
        };
        if let Some(home) = homes.iter().find(|home| named(home)) {
            complaints.push(Complaint::new(index + 1, format!("a path below {home}")));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_paths_must_exist() {
        let text = "See `lint/src/` and `gone.rs`, call `a / b`, `f(x)` or `/etc`.\n\
                    ```\n`also/gone.rs`\n```\n`also/gone.rs`\n";
        let missing = missing_paths(text, |path| path == "lint/src/");
        let lines: Vec<usize> = missing.iter().map(|complaint| complaint.line).collect();
        assert_eq!(lines, [1, 5]);
        assert_eq!(missing[0].what, "no `gone.rs`");
    }

    #[test]
    fn places_of_one_computer_are_found() {
        let path = format!("open(\"/{}/me/data\")", "home");
        assert_eq!(machine_places(&format!("ok\n{path}")).len(), 1);
        assert_eq!(machine_places("a/work/b and src/home/page.rs, ~/.cache, $ROOT/root/x"), []);
    }
}

//! Which crate and module a file is, from texts and paths alone.
//!
//! Must not touch the file system: files that are not in the list do not exist.

/// The module path of a file by the customs of cargo, for files that no `mod` item claims.
pub fn module_path_by_layout(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let parts: Vec<&str> = path.split('/').collect();
    let roots = ["src", "examples", "tests", "benches"];
    let Some(root) = parts.iter().rposition(|part| roots.contains(part)) else {
        return "crate".into();
    };
    let mut inner = &parts[root + 1..];
    if parts[root] != "src" || inner.first() == Some(&"bin") {
        // Each of these files, or folders with a `main.rs`, is a crate of its own.
        inner = inner.get(1..).unwrap_or(&[]);
        if parts[root] == "src" {
            inner = inner.get(1..).unwrap_or(&[]);
        }
    }
    if let [head @ .., "mod" | "main" | "lib"] = inner {
        inner = head;
    }
    ["crate"].iter().chain(inner).copied().collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::module_path_by_layout;

    #[test]
    fn layout_names_modules() {
        let paths = [
            ("src/main.rs", "crate"),
            ("src/lib.rs", "crate"),
            ("src/data.rs", "crate.data"),
            ("app/src/data/mod.rs", "crate.data"),
            ("src/data/loader.rs", "crate.data.loader"),
            ("src/bin/train.rs", "crate"),
            ("src/bin/train/main.rs", "crate"),
            ("src/bin/train/data.rs", "crate.data"),
            ("examples/mnist.rs", "crate"),
            ("examples/mnist/main.rs", "crate"),
            ("examples/mnist/data.rs", "crate.data"),
            ("train.rs", "crate"),
        ];
        for (path, expected) in paths {
            assert_eq!(module_path_by_layout(path), expected, "{path}");
        }
    }
}

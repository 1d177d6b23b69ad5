//! What this build is.

/// `ddp-lint -V`.
pub(crate) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// `ddp-lint --version`: also the parsers, since they decide which syntax is known.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nPython parser: ruff_python_parser 0.0.10",
    "\nRust parser:   syn 3.0.10"
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_parsers_named_are_those_that_are_built_in() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock");
        let lock: toml::Table = std::fs::read_to_string(lock).unwrap().parse().unwrap();
        for line in super::LONG.lines().skip(1) {
            let (_, parser) = line.split_once(':').unwrap();
            let (name, version) = parser.trim().split_once(' ').unwrap();
            let is_it = |package: &&toml::Value| {
                package["name"].as_str() == Some(name)
                    && package["version"].as_str() == Some(version)
            };
            let packages = lock["package"].as_array().unwrap();
            assert!(
                packages.iter().any(|package| is_it(&package)),
                "{parser} is not in Cargo.lock"
            );
        }
    }
}

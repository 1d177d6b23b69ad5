//! SARIF against the official schema, which the crate serde-sarif carries.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::{ddp_lint, root};

/// The schema in the sources of serde-sarif, where cargo keeps them.
fn schema() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = packages.iter().find(|package| package["name"] == "serde-sarif");
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = PathBuf::from(manifest.expect("serde-sarif is a dependency of these tests"));
    let text = std::fs::read_to_string(manifest.with_file_name("src/schema.json"));
    serde_json::from_str(&text.expect("the schema is there")).expect("JSON")
}

#[test]
fn the_official_schema_accepts_our_sarif() {
    let schema = schema();
    let about = schema["title"].as_str().unwrap_or_default();
    assert!(about.contains("(SARIF) Version 2.1.0"), "{about}");
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.enable_format_assertions();
    compiler.add_resource("sarif.json", schema).expect("a schema");
    let index = compiler.compile("sarif.json", &mut schemas).expect("a schema");
    let output = Command::new(ddp_lint())
        .args(["check", "--isolated", "--advice", "--output-format", "sarif", "fixtures"])
        .current_dir(root())
        .output()
        .expect("the linter runs");
    let sarif: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let results = sarif["runs"][0]["results"].as_array().expect("results");
    assert!(results.iter().any(|one| one.get("fixes").is_some()), "a fix is among them");
    assert!(results.iter().any(|one| one.get("relatedLocations").is_some()), "so are places");
    if let Err(error) = schemas.validate(&sarif, index) {
        panic!("{error:#}");
    }
    let mut broken = sarif.clone();
    broken["runs"][0]["results"][0]["level"] = "catastrophe".into();
    assert!(schemas.validate(&broken, index).is_err(), "the schema is really asked");
}

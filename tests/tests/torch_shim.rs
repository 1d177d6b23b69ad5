//! The C++ shim is compiled against stand-ins for gloo's headers, whose classes have other layouts
//! than the real ones: its object must not contain anything made from them.
#![cfg(feature = "torch")]

use std::process::Command;

#[test]
fn the_shim_defines_no_table_of_a_gloo_class() {
    let output = Command::new("nm").args(["-C", "--defined-only", env!("TCH_DDP_SHIM")]).output();
    let output = output.expect("nm (binutils) comes with the C++ compiler that built the shim");
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(symbols.contains(" T ddp_group_gloo"), "not the shim:\n{symbols}");
    let tables: Vec<&str> = symbols
        .lines()
        .filter(|line| ["vtable for", "typeinfo for", "VTT for"].iter().any(|t| line.contains(t)))
        .filter(|line| line.to_lowercase().contains("gloo"))
        .collect();
    assert_eq!(tables, Vec::<&str>::new());
    let constructors: Vec<&str> =
        symbols.lines().filter(|line| line.contains("GlooStore::")).collect();
    assert_eq!(constructors, Vec::<&str>::new());
}

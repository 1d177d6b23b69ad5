//! Each program in `programs/` uses a macro wrongly and has the compiler's words beside it. After a
//! wanted change, `TRYBUILD=overwrite` writes them anew. Needs the feature `ui`, but no libtorch.
#![cfg(feature = "ui")]

#[test]
fn wrong_uses_are_explained() {
    trybuild::TestCases::new().compile_fail("programs/*.rs");
}

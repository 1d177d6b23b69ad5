//! Each program in `programs/` uses a macro wrongly and has the compiler's words beside it; after a
//! wanted change, `TRYBUILD=overwrite` writes them anew. Each in `accepted/` compiles as it is.
//! Needs the feature `ui`, but no libtorch.
#![cfg(feature = "ui")]

/// Together, so that the dependencies are built once.
#[test]
fn wrong_uses_are_explained_and_right_ones_compile() {
    let programs = trybuild::TestCases::new();
    programs.compile_fail("programs/*.rs");
    programs.pass("accepted/*.rs");
}

//! What the black-box tests share: the programs under test, the fixtures, how they are compared.
//!
//! The programs are run as users run them; of the linter's library only the marks are used.

pub mod binaries;
pub mod corpus;
pub mod findings;
pub mod launch;
pub mod repository;
pub mod spmd;
pub mod tidy;
#[cfg(feature = "torch")]
pub mod torch;

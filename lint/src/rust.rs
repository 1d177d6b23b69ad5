//! The Rust front end: source text to the program model, crates to modules, fixes to edits.
//!
//! The only place that names `syn`. No I/O: texts come in, values go out.
//!
//! How Rust reads in the model, beyond what `model` says:
//! - `&x`, `*x`, `x as T`, `(x)` are `x`, with the place of `x` alone.
//! - `None` is the literal. `a..b` calls `range(a, b)`; `a..=b` is `range(a, last = b)`, `a..`
//!   is `range(start = a)`, `..b` is `range(end = b)`. Between index brackets it is a `Slice`.
//! - `[x; n]` and `vec![x; n]` are `[x] * n`. `format!(..)` is a `Format`.
//! - Patterns: `P(a, b)` is a `Call`, `P { f: a }` a `Construct`, `n @ p` a `Walrus`, `..` the
//!   name `_`, starred; a lone capitalised name is `Opaque`, since it tests.
//! - `panic!`, `bail!`, `todo!` and the like are `Raise`; `assert*!` and `ensure!` are `Assert`.
//! - A tail `if` with `else`, `match` or block returns inside its arms. A function without `->`
//!   returns nothing. An arm whose block has no tail value ends in `Pass`.
//! - `let P = v else { .. }` is an `If` on a `Let` with an empty body; what it binds stays bound.
//! - `break 'label v` leaves the innermost loop; `v` is assigned to a name that source text
//!   cannot spell, and that name is the value of the loop. A labelled block is a loop that ends.
//! - Inline `mod`s are flattened; their names are bound to the file's own module. What only
//!   tests compile is skipped. Constants of `impl X` are assigned to `X.NAME` at the top level.
//! - Enum payloads are fields named `Variant.0` or `Variant.name`. Derives are empty `Impl`s.
//! - A parameter whose type is a generic is annotated with the first bound of that generic.

pub mod crates;
pub mod edit;
mod lex;
mod lower;
mod recover;

pub use lower::lower;

#[cfg(test)]
mod dump;
#[cfg(test)]
mod tests;

//! The shapes in which people write tch models, each with `#[data_parallel]` where it applies:
//! they compile, are named and registered as said, and two ranks train them as one process does.

mod axial;
mod common;
mod convolutions;
mod functions;
mod language;
mod mixture;
mod owner;
mod tagger;
mod vision;

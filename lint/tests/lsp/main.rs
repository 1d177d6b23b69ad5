//! The language server as an editor meets it: messages over pipes.

mod client;
mod noise;
mod sessions;

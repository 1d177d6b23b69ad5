//! The language server: the linter while people type.
//!
//! One loop that answers in order; only reading has a thread of its own. A message that cannot
//! be served is answered with an error or ignored, and never ends the server.

mod actions;
mod capabilities;
mod convert;
mod diagnostics;
mod documentation;
mod documents;
mod hover;
mod notifications;
mod server;
mod settings;
mod state;
mod transport;

pub use documentation::link;
pub use server::serve;

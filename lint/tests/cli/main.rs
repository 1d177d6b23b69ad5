//! The program from outside: files in a scratch folder, arguments, streams and exit status.

mod adoption;
mod configuration;
mod discovery;
mod explanations;
mod fixing;
mod formats;
mod status;
mod support;
mod suppression;
mod watching;

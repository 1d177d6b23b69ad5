//! The program; `cargo-ddp-lint` and `ddp-lint` are the same.

fn main() -> std::process::ExitCode {
    ddp_lint::cli::main()
}

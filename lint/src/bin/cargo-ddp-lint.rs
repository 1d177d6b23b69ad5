//! The program; `cargo-ddp-lint` and `ddp-lint` are the same.

/// Programs are followed with many small objects; this allocator takes a fifth off the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    ddp_lint::cli::main()
}

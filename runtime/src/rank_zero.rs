//! Work that only rank 0 does: printing and whatever else must happen once. Nothing in here is a
//! collective.

/// Runs statements on rank 0 only; the first argument is anything with `is_main()`.
///
/// A collective inside would hang the other ranks' next one.
///
/// ```no_run
/// # fn main() -> tch_ddp::Result<()> {
/// # let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::alone(), Default::default())?;
/// tch_ddp::main_only!(group, println!("training on {} ranks", group.world_size()));
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! main_only {
    ($group:expr, $($body:tt)*) => {
        if $group.is_main() {
            $($body)*;
        }
    };
}

/// `println!` on rank 0 only; the first argument is anything with `is_main()`.
#[macro_export]
macro_rules! main_println {
    ($group:expr $(, $($text:tt)*)?) => {
        if $group.is_main() {
            println!($($($text)*)?);
        }
    };
}

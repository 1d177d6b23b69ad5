//! The linter against random programs whose faults are known: no hang or wrong pair is missed,
//! and hardly a correct program is blamed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ddp_lint::model::Language;
use ddp_tests::spmd::{self, generate, simulate};

const N_PROGRAMS: u64 = 2000;
/// Per thousand of the correct programs.
const N_BLAMED_MAX_PERMILLE: usize = 20;

const N_SHOWN: usize = 3;

#[derive(Debug, Default)]
struct Tally {
    faulty: usize,
    correct: usize,
    missed: Vec<String>,
    blamed: Vec<String>,
}

/// Half of the programs in Python, half in Rust.
fn language_of(seed: u64) -> Language {
    if seed.is_multiple_of(2) { Language::Python } else { Language::Rust }
}

fn judge(seed: u64, tally: &Mutex<Tally>) {
    let language = language_of(seed);
    let program = generate::program(seed);
    let text = spmd::text(&program, language);
    let faulty = simulate::is_faulty(&program);
    let found = spmd::lint(&text, language);
    let mut tally = tally.lock().expect("no judge panics while it holds this");
    if faulty {
        tally.faulty += 1;
        if found.is_empty() {
            tally.missed.push(format!("seed {seed}:\n{text}"));
        }
    } else {
        tally.correct += 1;
        if !found.is_empty() {
            tally.blamed.push(format!("seed {seed}: {found:#?}\n{text}"));
        }
    }
}

fn judge_all() -> Tally {
    let tally = Mutex::new(Tally::default());
    let next = AtomicU64::new(0);
    let n_threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= N_PROGRAMS {
                        return;
                    }
                    judge(seed, &tally);
                }
            });
        }
    });
    tally.into_inner().expect("all judges ended well")
}

#[test]
fn no_fault_is_missed_and_hardly_a_correct_program_blamed() {
    let tally = judge_all();
    let shown = |programs: &[String]| {
        let mut programs = programs.to_vec();
        // The shortest say the most.
        programs.sort_by_key(String::len);
        programs.truncate(N_SHOWN);
        programs.join("\n")
    };
    let counts = format!(
        "{} faulty, {} missed; {} correct, {} blamed",
        tally.faulty,
        tally.missed.len(),
        tally.correct,
        tally.blamed.len()
    );
    println!("{counts}");
    // Both kinds must be there in numbers, or the rest says nothing.
    assert!(tally.faulty >= 500 && tally.correct >= 500, "{counts}");
    assert!(tally.missed.is_empty(), "{counts}\n{}", shown(&tally.missed));
    let allowed = tally.correct * N_BLAMED_MAX_PERMILLE / 1000;
    assert!(tally.blamed.len() <= allowed, "{counts}\n{}", shown(&tally.blamed));
}

#[test]
fn a_seed_gives_the_same_program_for_ever() {
    for seed in [0, 1, 77] {
        assert_eq!(generate::program(seed), generate::program(seed));
    }
    let distinct: std::collections::HashSet<String> =
        (0..200).map(|seed| spmd::text(&generate::program(seed), language_of(seed))).collect();
    assert!(distinct.len() > 190, "{}", distinct.len());
}

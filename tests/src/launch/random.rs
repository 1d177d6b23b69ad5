//! Kills at random: the dice are thrown anew in each run, and the seed is printed.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Started, kill, run_state};
use crate::repository;

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        eprintln!("seed {seed}");
        Self(seed | 1)
    }

    /// A number from 0 to 1.
    fn roll(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Kills a random rank of each attempt at a random moment, `n_kills` times. The ranks print
/// "begins" when they train; every other kill hits them after that, the others come within
/// `start_s` seconds and may hit the start as well.
#[track_caller]
pub fn kill_at_random(started: &mut Started, logs: &Path, n_kills: usize, start_s: f64) {
    let mut dice = Dice::new();
    for n_killed in 0..n_kills {
        started.until("the attempt", |_| {
            let state = run_state(logs);
            state.is_some_and(|state| state["restarts"] == n_killed && state["status"] == "running")
        });
        if n_killed % 2 == 0 {
            let log = logs.join(format!("attempt_{n_killed}/0/stdout.log"));
            let begun =
                |_: &[i32]| fs::read_to_string(&log).is_ok_and(|log| log.contains("begins"));
            started.until_within(300.0, "the training", begun);
            thread::sleep(Duration::from_secs_f64(3.0 * dice.roll()));
        } else {
            thread::sleep(Duration::from_secs_f64(start_s * dice.roll()));
        }
        let mut ranks = started.ranks();
        while ranks.is_empty() {
            ranks = started.ranks();
        }
        let (_, victim) = ranks[(dice.roll() * ranks.len() as f64) as usize];
        kill("KILL", victim as u32);
    }
}

/// As many attempts were killed as were to be, and the last one went on from a checkpoint.
#[track_caller]
pub fn was_resumed_after(n_kills: usize, logs: &Path) {
    let state = run_state(logs).expect("the run has written its state");
    let causes = state["root_causes"].as_array().expect("a list of root causes");
    assert_eq!(causes.len(), n_kills);
    for cause in causes {
        assert_eq!(cause["how"]["signal"], 9, "{cause}");
    }
    let resumed = repository::read(&logs.join(format!("attempt_{n_kills}/0/stdout.log")));
    assert!(!resumed.contains("begins at step 0\n"), "nothing was resumed: {resumed}");
}

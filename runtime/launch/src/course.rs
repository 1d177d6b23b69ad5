//! How one attempt goes, as a state machine without processes or sockets: what has happened so
//! far, and when the next thing is due.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::failure::{self, Failure};
use crate::group::KILL_LIMIT;
use crate::nodes::{Finish, Start};

/// After a first failure the others get this long to fail by themselves: the report then knows
/// who came first, and a rank that reports its own error can finish doing so.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

/// As long as those that have failed only say that a rank went away, that rank gets this long to
/// end by itself, so that it is known how.
pub(crate) const SETTLE_CONSEQUENCES: Duration = Duration::from_secs(2);

/// Longest wait without looking at anything.
const TICK: Duration = Duration::from_millis(500);

/// Where the attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// A rank has failed at this time; the others are stopped a little later.
    Settling(Instant),
    /// The ranks were asked to end and are killed at this time.
    Ending {
        kill_at: Instant,
    },
    /// They were killed at this time.
    Killed(Instant),
    /// A process did not even end by that.
    Unkillable,
}

/// What is known of the attempt.
pub(crate) struct Course {
    pub phase: Phase,
    /// The signal that told the launcher itself to end.
    pub signal: Option<i32>,
    /// A restart cannot help.
    pub fatal: bool,
    known: Vec<(Instant, Failure)>,
    /// Launchers whose ranks have all succeeded, and whose ranks have all ended.
    pub done: HashSet<usize>,
    pub ended: HashSet<usize>,
    /// What a follower has told the leader.
    pub reported_done: bool,
    pub reported_ended: Option<Instant>,
    /// When the ranks were asked to end.
    pub ending: Option<Instant>,
    /// What the leader has told a follower.
    pub next: Option<Start>,
    pub finish: Option<Finish>,
    /// A follower has lost the leader.
    pub leader_lost: bool,
    /// Ranks whose stop was shown.
    pub seen_stopped: HashSet<usize>,
    pub drawn: Option<Instant>,
    pub table: Vec<String>,
}

impl Course {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Running,
            signal: None,
            fatal: false,
            known: Vec::new(),
            done: HashSet::new(),
            ended: HashSet::new(),
            reported_done: false,
            reported_ended: None,
            ending: None,
            next: None,
            finish: None,
            leader_lost: false,
            seen_stopped: HashSet::new(),
            drawn: None,
            table: Vec::new(),
        }
    }

    /// Whether the ranks have not been asked to end yet.
    pub(crate) fn is_going(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Settling(_))
    }

    /// Time until something is due.
    pub(crate) fn wait(&self) -> Duration {
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        match self.phase {
            Phase::Settling(_) => SETTLE / 4,
            Phase::Ending { kill_at } => until(kill_at).min(TICK),
            Phase::Killed(at) => until(at + KILL_LIMIT).min(TICK),
            Phase::Running | Phase::Unkillable => TICK,
        }
    }

    /// Adds failures. Of a rank that is known already the first account of how it failed holds,
    /// with the latest lines and error file.
    pub(crate) fn learn(&mut self, failures: Vec<Failure>) {
        let now = Instant::now();
        for failure in failures {
            let same = |(_, known): &&mut (Instant, Failure)| {
                (known.rank, known.pid) == (failure.rank, failure.pid)
            };
            match self.known.iter_mut().find(same) {
                Some((_, known)) => {
                    known.last_lines = failure.last_lines;
                    known.message = failure.message.or(known.message.take());
                    known.error_file = failure.error_file.or(known.error_file.take());
                }
                None => self.known.push((now, failure)),
            }
        }
    }

    /// All failures, the earliest first, with their ages as of now.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        let aged = |(at, failure): &(Instant, Failure)| {
            let mut failure = failure.clone();
            failure.age += at.elapsed();
            failure
        };
        let mut failures: Vec<_> = self.known.iter().map(aged).collect();
        failure::sort(&mut failures);
        failures
    }
}

/// Pause before a restart: none after an attempt that lived for a while, else twice as long for
/// each attempt that died young.
pub(crate) fn restart_delay(n_young: u32, longest: Duration) -> Duration {
    if n_young == 0 {
        return Duration::ZERO;
    }
    Duration::from_millis(500).saturating_mul(1 << (n_young - 1).min(16)).min(longest)
}

/// An attempt that failed sooner than this died young.
pub(crate) const YOUNG: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_loop_backs_off() {
        let longest = Duration::from_secs(30);
        let delays: Vec<_> =
            (0..9).map(|young| restart_delay(young, longest).as_secs_f64()).collect();
        assert_eq!(delays, [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        assert_eq!(restart_delay(5, Duration::ZERO), Duration::ZERO);
    }
}

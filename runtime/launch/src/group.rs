//! The ranks of one attempt on this node as processes: started, watched, ended, swept away.
//! Touches only processes that it started and what those left behind.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Pid;
use signal_hook::consts::{SIGCONT, SIGKILL, SIGTERM};

use crate::cli::Args;
use crate::cluster::Env;
use crate::environment::{self, Seat};
use crate::failure::{ErrorFile, Failure, How};
use crate::folder::{self, Folder};
use crate::hidden::{self, Guard};
use crate::lines::Tail;
use crate::output::{Feed, Output, Routes};
use crate::program::Program;
use crate::sink::Stream;
use crate::sys::{self, Seen};
use crate::trouble::Trouble;

/// How long the kernel may take to end a process after SIGKILL (a process that waits for a disk
/// or a GPU driver cannot be ended).
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How long what ranks have started may take to hear the signal that ended the ranks.
const LEFTOVER_MOMENT: Duration = Duration::from_millis(200);

/// What leftovers of ranks get between SIGTERM and SIGKILL, at most.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);

/// How long what is still in the pipes may take to read: a process that cannot be ended might
/// write for ever.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Doing {
    Running,
    Stopped(Instant),
    /// It has ended, by itself or because it was told to.
    Ended {
        seen: Seen,
        at: SystemTime,
        told: bool,
    },
}

/// A rank's process.
pub(crate) struct Rank {
    pub seat: Seat,
    child: Child,
    pid: Pid,
    out: Feed<ChildStdout>,
    err: Feed<ChildStderr>,
    pub tail: Tail,
    pub doing: Doing,
    error_file: Option<PathBuf>,
    /// When an error file was written that was there before this rank: an earlier one's.
    stale_error: Option<SystemTime>,
    /// Whether it had reported an error when the ranks were told to end.
    reported: bool,
    keeps_files: bool,
    /// Its folder, if that holds log files.
    logs: Option<PathBuf>,
    reaped: bool,
}

impl Rank {
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    fn is_over(&self) -> bool {
        matches!(self.doing, Doing::Ended { .. })
    }

    /// The error that this rank has reported. Compared with the file that was there before, not
    /// with our clock: file times lag behind it by up to a tick of the kernel, and those of a file
    /// server are of another clock.
    fn error(&self) -> Option<ErrorFile> {
        let file = ErrorFile::read(self.error_file.as_ref()?)?;
        (Some(file.written) != self.stale_error).then_some(file)
    }

    /// The error file, if there is one and it is there after the run too.
    fn kept_error_file(&self) -> Option<String> {
        let path = self.error_file.as_ref().filter(|path| self.keeps_files && path.exists())?;
        Some(path.display().to_string())
    }

    /// Whether it has ended as it should.
    pub(crate) fn succeeded(&self) -> bool {
        matches!(self.doing, Doing::Ended { seen: Seen::Exited(0), .. })
    }
}

/// Everything that is needed to start ranks.
pub(crate) struct Recipe<'a> {
    pub args: &'a Args,
    pub env: &'a Env,
    pub program: &'a Program,
    pub routes: &'a Routes,
    pub folder: Option<&'a Folder>,
    /// The environment is torchrun's: only `--rank-env` is added.
    pub inherited: bool,
    pub attempt: environment::Attempt,
}

/// All ranks of this launcher in one attempt.
pub(crate) struct Group {
    pub ranks: Vec<Rank>,
    began: SystemTime,
    /// Whether the ranks have been told to end.
    told: bool,
}

impl Group {
    /// No ranks.
    pub(crate) fn empty() -> Self {
        Self { ranks: Vec::new(), began: SystemTime::now(), told: false }
    }

    /// Starts the ranks. When one cannot be started, those before it are ended again.
    pub(crate) fn start(
        recipe: &Recipe<'_>,
        seats: &[Seat],
        output: &mut Output,
        guard: Option<&Guard>,
    ) -> Result<Self, Trouble> {
        let mut group =
            Self { ranks: Vec::with_capacity(seats.len()), began: SystemTime::now(), told: false };
        for seat in seats {
            match start_rank(recipe, *seat, output, guard) {
                Ok(rank) => group.ranks.push(rank),
                Err(trouble) => {
                    group.signal(SIGKILL);
                    sys::wait_until(KILL_LIMIT, || {
                        group.look();
                        group.is_over()
                    });
                    group.sweep(Duration::ZERO, output, guard);
                    return Err(trouble);
                }
            }
        }
        Ok(group)
    }

    /// Open pipes to wait for, with what `read` needs to know.
    pub(crate) fn pipes(&self) -> Vec<(usize, Stream, BorrowedFd<'_>)> {
        let mut pipes = Vec::with_capacity(2 * self.ranks.len());
        for (at, rank) in self.ranks.iter().enumerate() {
            pipes.extend(rank.out.pipe.as_ref().map(|pipe| (at, Stream::Out, pipe.as_fd())));
            pipes.extend(rank.err.pipe.as_ref().map(|pipe| (at, Stream::Err, pipe.as_fd())));
        }
        pipes
    }

    /// Reads once from a pipe that is readable.
    pub(crate) fn read(&mut self, at: usize, stream: Stream, output: &mut Output) {
        let rank = &mut self.ranks[at];
        match stream {
            Stream::Out => rank.out.read(output, &mut rank.tail),
            Stream::Err => rank.err.read(output, &mut rank.tail),
        }
    }

    /// Looks what every rank is doing; to be called when a child has changed.
    pub(crate) fn look(&mut self) {
        for rank in &mut self.ranks {
            if rank.is_over() {
                continue;
            }
            rank.doing = match (sys::look(rank.pid), rank.doing) {
                (Seen::Running, _) => Doing::Running,
                (Seen::Stopped, Doing::Stopped(since)) => Doing::Stopped(since),
                (Seen::Stopped, _) => Doing::Stopped(Instant::now()),
                (seen, _) => Doing::Ended { seen, at: SystemTime::now(), told: self.told },
            };
        }
    }

    /// Whether all have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ranks.iter().all(Rank::is_over)
    }

    /// Whether all have ended as they should.
    pub(crate) fn succeeded(&self) -> bool {
        self.ranks.iter().all(Rank::succeeded)
    }

    /// Whether one has failed by itself, or is stopped for too long.
    pub(crate) fn has_failed(&self, stop_limit: Option<Duration>) -> bool {
        self.ranks.iter().any(|rank| match rank.doing {
            Doing::Ended { seen, told, .. } => !told && seen != Seen::Exited(0),
            Doing::Stopped(since) => stop_limit.is_some_and(|limit| since.elapsed() >= limit),
            Doing::Running => false,
        })
    }

    /// Passes a signal on to ranks that have not ended, and to what they started.
    pub(crate) fn signal(&self, signal: i32) {
        for rank in self.ranks.iter().filter(|rank| !rank.is_over()) {
            sys::signal_group(rank.pid, signal);
        }
    }

    /// Passes a signal on to the ranks alone: what they have started, loader workers say, need
    /// not know it and would die of it.
    pub(crate) fn notify(&self, signal: i32) {
        for rank in self.ranks.iter().filter(|rank| !rank.is_over()) {
            sys::signal_process(rank.pid, signal);
        }
    }

    /// Asks the ranks to end. What ends from now on has not failed, unless it has reported an
    /// error already; a stopped rank is woken, as it could not hear the signal.
    pub(crate) fn tell_to_end(&mut self, signal: i32) {
        self.look();
        self.told = true;
        for rank in self.ranks.iter_mut().filter(|rank| !rank.is_over()) {
            rank.reported = rank.error().is_some();
        }
        self.signal(signal);
        self.signal(SIGCONT);
    }

    /// The failures of this attempt, the earliest first. A rank counts by the time of its error
    /// file if it wrote one: a rank that reports an error and takes its time to end comes before
    /// those that died of its silence.
    pub(crate) fn failures(&self, host: &str, stop_limit: Option<Duration>) -> Vec<Failure> {
        let mut failures: Vec<_> =
            self.ranks.iter().filter_map(|rank| self.failure(rank, host, stop_limit)).collect();
        crate::failure::sort(&mut failures);
        failures
    }

    fn failure(&self, rank: &Rank, host: &str, stop_limit: Option<Duration>) -> Option<Failure> {
        let file = rank.error();
        let (how, seen_at) = match rank.doing {
            Doing::Ended { seen, at, told } => {
                let how = match seen {
                    Seen::Exited(0) | Seen::Running | Seen::Stopped => return None,
                    _ if told && rank.reported => How::Reported,
                    _ if told => return None,
                    Seen::Exited(code) => How::Exit(code),
                    Seen::Killed(signal) => How::Signal(signal),
                };
                (how, at)
            }
            Doing::Stopped(since) => {
                let secs = since.elapsed();
                if stop_limit.is_none_or(|limit| secs < limit) {
                    return None;
                }
                (How::Stopped(secs.as_secs()), SystemTime::now())
            }
            Doing::Running => return None,
        };
        let at = file.as_ref().map_or(seen_at, |file| file.written.max(self.began).min(seen_at));
        Some(Failure {
            rank: rank.seat.rank,
            local_rank: rank.seat.local_rank,
            host: host.to_owned(),
            pid: rank.pid(),
            code: Failure::exit_code(&how),
            how,
            age: SystemTime::now().duration_since(at).unwrap_or_default(),
            after: at.duration_since(self.began).unwrap_or_default(),
            error_file: rank.kept_error_file(),
            message: file.map(|file| file.message),
            last_lines: rank.tail.text(),
            logs: rank.logs.as_ref().map(|logs| logs.display().to_string()),
        })
    }

    /// Ends what the ranks have left behind, reads what is still in their pipes and reaps them.
    /// Until here their process ids are theirs, so that no signal can hit a stranger.
    pub(crate) fn sweep(&mut self, limit: Duration, output: &mut Output, guard: Option<&Guard>) {
        self.end_leftovers(limit.min(LEFTOVER_LIMIT), output, guard);
        self.drain(output);
        for rank in &mut self.ranks {
            if let Some(guard) = guard {
                guard.forget(rank.pid);
            }
            rank.out.close(output, &mut rank.tail);
            rank.err.close(output, &mut rank.tail);
            if rank.is_over() && !rank.reaped {
                rank.reaped = rank.child.wait().is_ok();
            }
        }
        for orphan in self.orphans(guard) {
            sys::reap(orphan);
        }
        output.flush();
    }

    fn end_leftovers(&self, limit: Duration, output: &mut Output, guard: Option<&Guard>) {
        // Those that have been told to end take a moment, too.
        let moment = if self.told { LEFTOVER_MOMENT } else { Duration::ZERO };
        if sys::wait_until(moment, || self.leftovers(guard).is_empty()) {
            return;
        }
        let left = self.leftovers(guard);
        let names: Vec<_> =
            left.iter().take(5).map(|(pid, name)| format!("{name} ({pid})")).collect();
        let more = if left.len() > 5 { ", …" } else { "" };
        output.say(&format!(
            "ranks left {} behind, ending what is left: {}{more}",
            if left.len() == 1 { "a process" } else { "processes" },
            names.join(", ")
        ));
        for signal in [SIGTERM, SIGKILL] {
            for (pid, _) in self.leftovers(guard) {
                if let Some(pid) = Pid::from_raw(pid) {
                    sys::signal_process(pid, signal);
                }
            }
            if sys::wait_until(limit, || self.leftovers(guard).is_empty()) {
                return;
            }
        }
    }

    /// Living processes of the ranks' groups, and orphans of ranks that had left their group.
    fn leftovers(&self, guard: Option<&Guard>) -> Vec<(i32, String)> {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let ours = |process: &sys::Process| {
            let in_group = self.ranks.iter().any(|rank| rank.pid() == process.group);
            let orphan =
                process.parent == own && guard.is_none_or(|guard| guard.pid() != process.pid);
            let unkillable = self.ranks.iter().any(|rank| rank.pid == process.pid);
            (in_group || orphan) && !unkillable
        };
        sys::processes()
            .into_iter()
            .filter(ours)
            .map(|process| (process.pid.as_raw_nonzero().get(), process.name))
            .collect()
    }

    /// Children of the launcher that it did not start.
    fn orphans(&self, guard: Option<&Guard>) -> Vec<Pid> {
        let started = |pid: &Pid| {
            self.ranks.iter().any(|rank| rank.pid == *pid)
                || guard.is_some_and(|guard| guard.pid() == *pid)
        };
        sys::children().into_iter().filter(|pid| !started(pid)).collect()
    }

    /// Reaps orphans that have ended meanwhile, so that a long run does not collect zombies.
    pub(crate) fn reap_orphans(&self, guard: Option<&Guard>) {
        for orphan in self.orphans(guard) {
            sys::reap(orphan);
        }
    }

    /// Reads what can be read without waiting.
    fn drain(&mut self, output: &mut Output) {
        let end = Instant::now() + DRAIN_LIMIT;
        while Instant::now() < end {
            let ready: Vec<_> = {
                let pipes = self.pipes();
                let fds: Vec<_> = pipes.iter().map(|(_, _, fd)| *fd).collect();
                let ready = sys::wait_readable(&fds, Duration::ZERO);
                let ready = pipes.iter().zip(ready).filter(|(_, ready)| *ready);
                ready.map(|((at, stream, _), _)| (*at, *stream)).collect()
            };
            if ready.is_empty() {
                return;
            }
            for (at, stream) in ready {
                self.read(at, stream, output);
            }
        }
    }
}

fn start_rank(
    recipe: &Recipe<'_>,
    seat: Seat,
    output: &mut Output,
    guard: Option<&Guard>,
) -> Result<Rank, Trouble> {
    let folder = recipe.folder.map(|folder| folder.of_rank(recipe.attempt.restart, seat.rank));
    let mut command = hidden::rank_command(recipe.program, guard);
    if recipe.inherited {
        command.envs(environment::rank_env(&recipe.args.rank_env, &seat, recipe.attempt.restart));
    } else {
        command.envs(environment::variables(recipe.args, recipe.env, &seat, &recipe.attempt));
    }
    let own_file = recipe.inherited && recipe.env.contains_key("TORCHELASTIC_ERROR_FILE");
    let error_file = match &folder {
        _ if own_file => recipe.env.get("TORCHELASTIC_ERROR_FILE").map(PathBuf::from),
        Some(folder) => {
            folder::make(folder)?;
            let path = folder.join("error.json");
            command.env("TORCHELASTIC_ERROR_FILE", &path);
            Some(path)
        }
        None => None,
    };
    let stale_error = error_file.as_deref().and_then(ErrorFile::written);
    let (role, routes, logs) = (&recipe.args.role, recipe.routes, folder.as_deref());
    let mut out = Feed::open(Stream::Out, &seat, role, routes, logs, output)?;
    let mut err = Feed::open(Stream::Err, &seat, role, routes, logs, output)?;
    let has_logs = out.has_file() || err.has_file();
    let mut child = command.spawn().map_err(|error| no_process(seat.rank, &error))?;
    out.pipe = child.stdout.take();
    err.pipe = child.stderr.take();
    Ok(Rank {
        pid: Pid::from_child(&child),
        seat,
        child,
        out,
        err,
        tail: Tail::new(),
        doing: Doing::Running,
        stale_error,
        error_file,
        reported: false,
        keeps_files: recipe.folder.is_none_or(Folder::stays),
        logs: folder.filter(|_| has_logs),
        reaped: false,
    })
}

fn no_process(rank: usize, error: &io::Error) -> Trouble {
    Trouble::work(format!(
        "cannot start a process for rank {rank}: {error}; fewer ranks, or more processes, open \
         files and memory (ulimit -u, ulimit -n) would help"
    ))
}

//! One attempt: starts the ranks, watches them and the other launchers, and ends them together.
//! Whether there is another attempt is decided elsewhere.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};

use super::Run;
use crate::cluster::Placement;
use crate::course::{self, Course, Phase};
use crate::environment;
use crate::failure::{Failure, How};
use crate::folder::{Folder, Status};
use crate::group::{Doing, Group, KILL_LIMIT, Recipe};
use crate::nodes::{Finish, News, Start};
use crate::port::HeldPort;
use crate::program::Program;
use crate::sink::Stream;
use crate::sys;
use crate::trouble::Trouble;
use crate::view;

/// How often the live table is drawn.
const DRAW: Duration = Duration::from_millis(100);

/// How long the launchers of other nodes may take beyond what their ranks are given.
const PEER_LIMIT: Duration = Duration::from_secs(10);

/// What one look at everything has brought.
pub(super) struct Turn {
    pub(super) signals: Vec<i32>,
    pub(super) news: Vec<News>,
}

impl Run<'_> {
    fn start_group(&mut self, program: &Program, start: &Start) -> Result<Group, Trouble> {
        if self.folder.is_none() && !self.peers.is_leader() {
            self.folder = match (&self.args.log_dir, &start.folder) {
                (Some(log_dir), Some(name)) => {
                    Some(Folder::join(log_dir, name, self.placement.launchers().1)?)
                }
                (Some(log_dir), None) => Some(Folder::create(log_dir, &start.run_id)?),
                (None, _) => self.temporary_folder(),
            };
            self.change(Status::Running, None);
        }
        let seats = environment::seats(&self.placement, start.first_rank, start.world_size);
        let master = self.placement.master();
        let port = self.port.as_ref().map(HeldPort::number).or(master.map(|master| master.port));
        let recipe = Recipe {
            args: self.args,
            env: self.env,
            program,
            routes: &self.routes,
            folder: self.folder.as_ref(),
            inherited: matches!(self.placement, Placement::Inherited { .. }),
            attempt: environment::Attempt {
                run_id: start.run_id.clone(),
                restart: start.restart,
                max_restarts: start.max_restarts,
                master_addr: master.map(|master| master.addr.clone()).unwrap_or_default(),
                master_port: port.unwrap_or(0),
            },
        };
        Group::start(&recipe, &seats, &mut self.output, self.guard.as_ref())
    }

    /// One attempt, from the first rank's start to the last one's end on all nodes.
    pub(super) fn attempt(&mut self, program: &Program, start: &Start) -> Course {
        let mut course = Course::new();
        let mut group = match self.start_group(program, start) {
            Ok(group) => group,
            Err(trouble) => {
                course.fatal = true;
                let failure = self.not_started(&trouble);
                self.fail(vec![failure], &mut course, &mut Group::empty());
                Group::empty()
            }
        };
        while !self.is_over(&mut course, &group) {
            let wait = if self.live { course.wait().min(DRAW) } else { course.wait() };
            let turn = self.turn(&mut group, wait);
            for signal in turn.signals {
                self.obey(signal, &mut course, &mut group);
            }
            self.hear_all(turn.news, &mut course, &mut group);
            self.advance(&mut course, &mut group);
            self.draw(&mut course, &group, start);
        }
        group.sweep(self.grace, &mut self.output, self.guard.as_ref());
        course.learn(group.failures(&self.host, self.stop_limit));
        if self.live {
            self.output.console.panel(Vec::new());
        }
        course
    }

    fn not_started(&self, trouble: &Trouble) -> Failure {
        Failure {
            rank: 0,
            local_rank: 0,
            host: self.host.clone(),
            pid: -1 - self.placement.launchers().1 as i32,
            how: How::NotStarted(trouble.text.clone()),
            age: Duration::ZERO,
            after: Duration::ZERO,
            error_file: None,
            message: None,
            last_lines: Vec::new(),
            logs: None,
            code: trouble.code,
        }
    }

    /// Waits for whatever comes first, reads it, and does what needs no decision.
    pub(super) fn turn(&mut self, group: &mut Group, wait: Duration) -> Turn {
        let full = self.output.is_full();
        let (ready_peers, ready_pipes) = {
            let peers = self.peers.streams();
            let pipes = if full { Vec::new() } else { group.pipes() };
            let mut fds = vec![self.signals.stream().as_fd()];
            fds.extend(peers.iter().map(|(_, fd)| *fd));
            fds.extend(pipes.iter().map(|(_, _, fd)| *fd));
            let wait = if full { wait.min(Duration::from_millis(10)) } else { wait };
            let wait = if self.backlog.is_empty() { wait } else { Duration::ZERO };
            let ready = sys::wait_readable(&fds, wait);
            let (peers_ready, pipes_ready) = ready[1..].split_at(peers.len());
            let peers = peers.iter().zip(peers_ready).filter(|(_, ready)| **ready);
            let pipes = pipes.iter().zip(pipes_ready).filter(|(_, ready)| **ready);
            let peers: Vec<usize> = peers.map(|((at, _), _)| *at).collect();
            let pipes: Vec<(usize, Stream)> =
                pipes.map(|((at, stream, _), _)| (*at, *stream)).collect();
            (peers, pipes)
        };
        for (at, stream) in ready_pipes {
            group.read(at, stream, &mut self.output);
        }
        let mut turn = Turn { signals: Vec::new(), news: std::mem::take(&mut self.backlog) };
        for at in ready_peers {
            turn.news.extend(self.peers.receive(at));
        }
        turn.news.extend(self.peers.keep_alive(self.node_limit()));
        for signal in self.signals.take() {
            match signal {
                SIGCHLD => {
                    group.look();
                    group.reap_orphans(self.guard.as_ref());
                }
                SIGUSR1 | SIGUSR2 if !self.ending_signals.contains(&signal) => group.notify(signal),
                SIGTSTP => {
                    group.signal(SIGSTOP);
                    sys::stop_self();
                    group.signal(SIGCONT);
                }
                signal => turn.signals.push(signal),
            }
        }
        self.output.flush();
        turn
    }

    /// A signal that ends the run: passed on once; a second one kills.
    fn obey(&mut self, signal: i32, course: &mut Course, group: &mut Group) {
        let name = sys::signal_name(signal);
        if course.signal.is_some() {
            self.output.say(&format!("{name} again: killing the ranks"));
            group.signal(SIGKILL);
            course.phase = Phase::Killed(Instant::now());
            return;
        }
        course.signal = Some(signal);
        course.fatal = true;
        self.output.say(&format!(
            "{name}: passed on to the ranks, which have {} s to end; once more kills them",
            self.grace.as_secs_f64()
        ));
        if !self.peers.is_leader() {
            let mut failure = self.not_started(&Trouble::work(""));
            let (unit, (_, launcher)) = (self.placement.unit(), self.placement.launchers());
            failure.how =
                How::Node(format!("the launcher of {unit} {launcher} was told to end by {name}"));
            failure.code = Finish::by_signal(signal).code;
            self.peers.report_failed(vec![failure], true);
        }
        self.end(signal, course, group);
    }

    /// Hears what the other launchers say. What comes after the start of a next attempt is meant
    /// for that one and is kept for it.
    pub(super) fn hear_all(&mut self, news: Vec<News>, course: &mut Course, group: &mut Group) {
        for news in news {
            if course.next.is_some() {
                self.backlog.push(news);
            } else {
                self.hear(news, course, group);
            }
        }
    }

    fn hear(&mut self, news: News, course: &mut Course, group: &mut Group) {
        match news {
            News::Done(launcher) => {
                course.done.insert(launcher);
            }
            News::Failed { failures, fatal } => {
                course.fatal |= fatal;
                self.fail(failures, course, group);
            }
            News::Ended { launcher, failures } => {
                course.ended.insert(launcher);
                course.learn(failures);
            }
            News::Lost { launcher, host, why } => {
                let done = course.done.contains(&launcher) && course.is_going();
                course.ended.insert(launcher);
                if done {
                    return;
                }
                course.fatal = true;
                course.leader_lost = !self.peers.is_leader();
                let mut failure = self.not_started(&Trouble::work(""));
                let unit = self.placement.unit();
                let what = format!("the launcher of {unit} {launcher} ({host}) is gone: {why}");
                failure.how = How::Node(what);
                failure.pid = -1 - launcher as i32;
                self.fail(vec![failure], course, group);
            }
            News::Start(start) => course.next = Some(start),
            News::Stop { signal } => self.end(signal, course, group),
            News::Finish(finish) => {
                course.finish = Some(finish);
                self.end(SIGTERM, course, group);
            }
        }
    }

    /// Failures end the attempt, here and on the other nodes.
    fn fail(&mut self, failures: Vec<Failure>, course: &mut Course, group: &mut Group) {
        if !self.peers.is_leader() && !course.leader_lost {
            self.peers.report_failed(failures.clone(), course.fatal);
        }
        course.learn(failures);
        self.end(SIGTERM, course, group);
    }

    /// Asks the ranks of all nodes to end, once.
    fn end(&mut self, signal: i32, course: &mut Course, group: &mut Group) {
        if course.is_going() {
            self.peers.stop(signal);
            group.tell_to_end(signal);
            course.ending = Some(Instant::now());
            course.phase = Phase::Ending { kill_at: Instant::now() + self.grace };
        }
    }

    /// Does what is due.
    fn advance(&mut self, course: &mut Course, group: &mut Group) {
        self.warn_of_stops(course, group);
        let now = Instant::now();
        match course.phase {
            Phase::Running if group.has_failed(self.stop_limit) => {
                course.phase = Phase::Settling(now);
                self.advance(course, group);
            }
            Phase::Settling(at) if at.elapsed() >= course::SETTLE || group.is_over() => {
                let failures = group.failures(&self.host, self.stop_limit);
                let unexplained = failures.iter().all(Failure::is_consequence);
                let patient = at.elapsed() < course::SETTLE_CONSEQUENCES;
                if group.is_over() || !(unexplained && patient) {
                    self.fail(failures, course, group);
                }
            }
            Phase::Ending { kill_at } if now >= kill_at && !group.is_over() => {
                self.output.say(&format!(
                    "not all ranks ended within {} s: killing them",
                    self.grace.as_secs_f64()
                ));
                group.signal(SIGKILL);
                course.phase = Phase::Killed(now);
            }
            Phase::Killed(at) if now >= at + KILL_LIMIT && !group.is_over() => {
                let stuck =
                    group.ranks.iter().filter(|rank| !matches!(rank.doing, Doing::Ended { .. }));
                let stuck: Vec<_> = stuck.map(|rank| rank.pid().to_string()).collect();
                self.output.say(&format!(
                    "processes that even SIGKILL does not end (they wait for a disk or a \
                     driver) are left behind: {}",
                    stuck.join(", ")
                ));
                course.phase = Phase::Unkillable;
            }
            _ => {}
        }
    }

    /// A rank that somebody stopped makes the others wait: said once, as long as it lasts.
    fn warn_of_stops(&mut self, course: &mut Course, group: &Group) {
        for rank in &group.ranks {
            let stopped = matches!(rank.doing, Doing::Stopped(_));
            if stopped && course.is_going() && course.seen_stopped.insert(rank.seat.rank) {
                self.output.say(&format!(
                    "rank {} (pid {}) is stopped by a signal and the others may wait for it; \
                     kill -CONT {} lets it go on",
                    rank.seat.rank,
                    rank.pid(),
                    rank.pid()
                ));
            } else if !stopped {
                course.seen_stopped.remove(&rank.seat.rank);
            }
        }
    }

    /// Whether the attempt is over here and, as far as it is this launcher's business, elsewhere.
    fn is_over(&mut self, course: &mut Course, group: &Group) -> bool {
        let over_here = group.is_over() || course.phase == Phase::Unkillable;
        let succeeded = course.phase == Phase::Running && group.succeeded();
        if !self.peers.is_leader() {
            if succeeded && !course.reported_done {
                course.reported_done = true;
                self.peers.report_done();
            }
            if over_here && !course.is_going() && course.reported_ended.is_none() {
                course.reported_ended = Some(Instant::now());
                self.peers.report_ended(group.failures(&self.host, self.stop_limit));
            }
            let told = course.next.is_some() || course.finish.is_some() || course.leader_lost;
            // A launcher that was told to end itself waits for the last word, but not for long.
            let late = course.reported_ended.is_some_and(|at| at.elapsed() >= PEER_LIMIT);
            return over_here && (told || (course.signal.is_some() && late));
        }
        let n_others = self.peers.n_others();
        if succeeded {
            return course.done.len() >= n_others;
        }
        let patience = self.grace + KILL_LIMIT + PEER_LIMIT;
        let late = course.ending.is_some_and(|at| at.elapsed() >= patience);
        let all_heard = course.ended.len() >= n_others;
        if over_here && late && !all_heard {
            // Ranks of a next attempt could meet those of this one.
            course.fatal = true;
            self.output.say("not all nodes have ended their ranks in time: going on without them");
        }
        over_here && !course.is_going() && (all_heard || late)
    }

    fn draw(&mut self, course: &mut Course, group: &Group, start: &Start) {
        if !self.live || course.drawn.is_some_and(|at| at.elapsed() < DRAW) {
            return;
        }
        course.drawn = Some(Instant::now());
        let head = view::Head {
            run_id: &start.run_id,
            world_size: start.world_size,
            restart: start.restart,
            max_restarts: start.max_restarts,
            since_start: self.began.elapsed(),
        };
        let table = view::rows(&head, group, view::terminal_size());
        if table != course.table {
            self.output.console.panel(table.clone());
            course.table = table;
        }
    }
}

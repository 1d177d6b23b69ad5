//! Conducts a run: brings the launchers together, starts attempts, ends them when something
//! fails, restarts, and comes to an exit code.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGCHLD, SIGKILL, SIGSTOP, SIGTSTP, SIGUSR1, SIGUSR2};

mod attempt;

use crate::cli::Args;
use crate::cluster::{self, Env, Placement};
use crate::course::{self, Course};
use crate::failure;
use crate::folder::{self, Cause, Folder, State, Status};
use crate::group::Group;
use crate::hidden::Guard;
use crate::nodes::{self, Apart, Finish, Hello, News, Patience, Peers, Start};
use crate::output::{Output, Routes};
use crate::port::HeldPort;
use crate::program::{self, Program};
use crate::sys::{self, Signals};
use crate::trouble::Trouble;
use crate::view;

/// Time between SIGTERM and SIGKILL unless told otherwise; torchrun's.
const GRACE_SECONDS: f64 = 30.0;

/// What the last lines may take to be written after a signal has ended the run.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(5);

/// Starts the program of the command line and watches it to its end; the exit code.
pub(crate) fn launch(args: &Args, env: &Env) -> Result<u8, Trouble> {
    let placement = cluster::place(args, env)?;
    let mut run = Run::new(args, env, placement)?;
    let code = run.conduct();
    let code = match code {
        Ok(code) => code,
        Err(Apart::Signal(signal)) => {
            run.output.say(&format!("ended by {} before it began", sys::signal_name(signal)));
            Finish::by_signal(signal).code
        }
        Err(Apart::Trouble(trouble)) => {
            run.output.say(&trouble.text);
            trouble.code
        }
    };
    run.close(code);
    Ok(code)
}

struct Run<'a> {
    args: &'a Args,
    env: &'a Env,
    placement: Placement,
    host: String,
    ending_signals: Vec<i32>,
    grace: Duration,
    stop_limit: Option<Duration>,
    routes: Routes,
    output: Output,
    signals: Signals,
    guard: Option<Guard>,
    peers: Peers,
    /// News that belong to the attempt after this one.
    backlog: Vec<News>,
    port: Option<HeldPort>,
    folder: Option<Folder>,
    state: State,
    state_trouble: bool,
    live: bool,
    began: Instant,
}

impl<'a> Run<'a> {
    fn new(args: &'a Args, env: &'a Env, placement: Placement) -> Result<Self, Trouble> {
        let ending_signals = ending_signals(args)?;
        let mut listened = ending_signals.clone();
        listened.extend([SIGUSR1, SIGUSR2, SIGTSTP]);
        listened.dedup();
        let signals = Signals::listen(&listened)
            .map_err(|error| Trouble::work(format!("cannot listen to signals: {error}")))?;
        // Orphans of ranks become children of the launcher, which then can end them too.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let template = env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").map(String::as_str);
        let live = view::is_live(args.view, env.get("TERM").map(String::as_str));
        let run_id = args.rdzv_id.clone().unwrap_or_else(|| new_run_id(env));
        let seconds = Duration::from_secs_f64;
        Ok(Self {
            host: sys::host_name(),
            grace: seconds(args.shutdown_timeout.map_or_else(|| grace(env), Ok)?),
            stop_limit: args.stop_timeout.map(seconds),
            ending_signals,
            routes: Routes::new(args, template, live),
            output: Output::new(),
            signals,
            guard: None,
            peers: Peers::none(),
            backlog: Vec::new(),
            port: None,
            folder: None,
            state: first_state(args, run_id),
            state_trouble: false,
            live,
            began: Instant::now(),
            placement,
            args,
            env,
        })
    }

    /// Brings the launchers together and conducts the run.
    fn conduct(&mut self) -> Result<u8, Apart> {
        let program = program::find(self.args);
        let (n_launchers, launcher) = self.placement.launchers();
        if n_launchers == 1 {
            let program = program?;
            if let Some(master) = self.placement.master() {
                self.port = Some(HeldPort::take(master.port)?);
            }
            self.make_folder()?;
            return self.lead(&program);
        }
        let mut hello = Hello::new(&self.placement);
        hello.run_id.clone_from(&self.args.rdzv_id);
        if launcher == 0 {
            self.gather(&hello)?;
            return match program {
                Ok(program) => self.lead(&program),
                Err(trouble) => Ok(self.give_up(trouble.code, trouble.text)),
            };
        }
        hello.trouble = program.as_ref().err().map(|trouble| (trouble.code, trouble.text.clone()));
        self.join(&hello)?;
        // Also without a program: the others must hear of it before this launcher is gone.
        let waiting = self.wait_for_start()?;
        self.follow(waiting, program)
    }

    fn join_limit(&self) -> Duration {
        Duration::from_secs_f64(self.args.join_timeout)
    }

    fn node_limit(&self) -> Duration {
        Duration::from_secs_f64(self.args.node_timeout.max(1.0))
    }

    fn gather(&mut self, hello: &Hello) -> Result<(), Apart> {
        let Some(master) = self.placement.master() else { return Ok(()) };
        let port = HeldPort::take(master.port)?;
        self.make_folder()?;
        self.change(Status::Waiting, None);
        self.output.say(&format!(
            "{} says that {} {}s belong to this run: waiting for the other {} on port {}",
            cluster::witness(self.args, self.env),
            hello.n_launchers,
            hello.unit,
            hello.n_launchers - 1,
            port.number()
        ));
        let patience = Patience { join_limit: self.join_limit(), silence_limit: self.node_limit() };
        let (signals, output, endings) =
            (&mut self.signals, &mut self.output, &self.ending_signals);
        let mut pause = |wait| interrupted(signals, endings, wait);
        let mut say = |text: &str| output.say(text);
        self.peers = nodes::gather(&port, hello, &patience, &mut say, &mut pause)?;
        self.port = Some(port);
        Ok(())
    }

    fn join(&mut self, hello: &Hello) -> Result<(), Apart> {
        let Some(master) = self.placement.master() else { return Ok(()) };
        let limit = self.join_limit();
        let (signals, endings) = (&mut self.signals, &self.ending_signals);
        let mut pause = |wait| interrupted(signals, endings, wait);
        self.peers = nodes::join(master, hello, limit, &mut pause)?;
        Ok(())
    }

    /// Ends the run on all nodes before it began.
    fn give_up(&mut self, code: u8, why: String) -> u8 {
        self.output.say(&why);
        self.peers.finish(&Finish { code, why });
        code
    }

    /// Conducts the attempts as rank 0's launcher.
    fn lead(&mut self, program: &Program) -> Result<u8, Apart> {
        if let Some((code, why)) = self.peers.trouble(self.placement.unit()) {
            return Ok(self.give_up(code, why));
        }
        self.guard = Guard::start();
        let n_local = self.placement.n_local();
        let (n_launchers, _) = self.placement.launchers();
        self.state.world_size = match &self.placement {
            Placement::Inherited { world_size, .. } => *world_size,
            _ => n_local + self.peers.n_ranks(),
        };
        let mut n_young = 0;
        loop {
            let start = self.start_message();
            self.peers.start(&start, n_local);
            self.change(Status::Running, None);
            let attempt_began = Instant::now();
            let course = self.attempt(program, &start);
            if let Some(signal) = course.signal {
                return Ok(self.finish(&Finish::by_signal(signal), Status::Ended));
            }
            let failures = course.failures();
            let Some(root) = failures.first() else {
                return Ok(self.finish(&Finish::success(), Status::Succeeded));
            };
            self.state.root_causes.push(Cause::new(root, self.state.restarts));
            let report = failure::report(&failures, self.state.world_size, &self.attempt_name());
            self.output.say(&report);
            let last = self.state.restarts == self.args.max_restarts;
            if last || course.fatal || self.peers.n_connected() + 1 < n_launchers {
                let finish = Finish { code: root.code, why: report };
                return Ok(self.finish(&finish, Status::Failed));
            }
            n_young = if attempt_began.elapsed() < course::YOUNG { n_young + 1 } else { 0 };
            if let Some(finish) = self.pause_before_restart(n_young) {
                return Ok(self.finish(&finish, Status::Ended));
            }
        }
    }

    fn start_message(&self) -> Start {
        Start {
            restart: self.state.restarts,
            max_restarts: self.args.max_restarts,
            first_rank: 0,
            world_size: self.state.world_size,
            run_id: self.state.run_id.clone(),
            folder: self.args.log_dir.as_ref().and(self.folder.as_ref()).map(Folder::name),
        }
    }

    fn attempt_name(&self) -> String {
        match self.args.max_restarts {
            0 => String::new(),
            max => format!(" · restart {} of {max}", self.state.restarts),
        }
    }

    fn finish(&mut self, finish: &Finish, status: Status) -> u8 {
        self.peers.finish(finish);
        self.change(status, Some(finish.code));
        finish.code
    }

    /// Waits as long as the crash loop demands; signals and lost nodes end the wait.
    fn pause_before_restart(&mut self, n_young: u32) -> Option<Finish> {
        let longest = Duration::from_secs_f64(self.args.max_restart_delay);
        let delay = course::restart_delay(n_young, longest);
        self.state.restarts += 1;
        self.change(Status::Restarting, None);
        self.output.say(&format!(
            "restart {} of {}{}",
            self.state.restarts,
            self.args.max_restarts,
            if delay.is_zero() { String::new() } else { format!(" in {} s", delay.as_secs_f64()) }
        ));
        let end = Instant::now() + delay;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let turn = self.turn(&mut Group::empty(), left.min(Duration::from_millis(500)));
            if let Some(&signal) = turn.signals.first() {
                return Some(Finish::by_signal(signal));
            }
            for news in turn.news {
                if let News::Lost { launcher, host, why } = news {
                    let unit = self.placement.unit();
                    let why = format!("the launcher of {unit} {launcher} ({host}) is gone: {why}");
                    self.output.say(&why);
                    return Some(Finish { code: 1, why });
                }
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    /// Waits, once joined, for the first word of rank 0's launcher.
    fn wait_for_start(&mut self) -> Result<Course, Apart> {
        let mut waiting = Course::new();
        let limit = Instant::now() + self.join_limit();
        while waiting.next.is_none() && waiting.finish.is_none() {
            let turn = self.turn(&mut Group::empty(), Duration::from_millis(500));
            if let Some(&signal) = turn.signals.first() {
                return Err(Apart::Signal(signal));
            }
            for news in turn.news {
                match news {
                    News::Lost { host, why, .. } if waiting.next.is_none() => {
                        return Err(Trouble::work(format!(
                            "{host} took the connection, but the run did not begin: {why}; is \
                             another run using that address and port, or did node 0 end?"
                        ))
                        .into());
                    }
                    news => self.hear_all(vec![news], &mut waiting, &mut Group::empty()),
                }
            }
            if Instant::now() >= limit {
                return Err(Trouble::work(
                    "node 0 has not started the run in time: it waits for other nodes; see its \
                     messages, or raise --join-timeout",
                )
                .into());
            }
        }
        Ok(waiting)
    }

    /// Conducts attempts as rank 0's launcher says.
    fn follow(
        &mut self,
        mut course: Course,
        program: Result<Program, Trouble>,
    ) -> Result<u8, Apart> {
        if let Some(start) = course.next.take() {
            self.guard = Guard::start();
            course = self.follow_attempts(start, &program?);
        }
        let finish = course.finish.take().unwrap_or_else(|| match course.failures().first() {
            Some(root) => Finish { code: root.code, why: root.short() },
            None => Finish { code: 1, why: "node 0 is gone".into() },
        });
        let finish = course.signal.map_or(finish, Finish::by_signal);
        if finish.code != 0 {
            // With one launcher per rank all of them write to the same place.
            let one_of_many = matches!(self.placement, Placement::Task { .. });
            let why = &finish.why;
            self.output.say(if one_of_many { why.lines().next().unwrap_or_default() } else { why });
        }
        let status = if finish.code == 0 { Status::Succeeded } else { Status::Failed };
        self.change(status, Some(finish.code));
        Ok(finish.code)
    }

    fn follow_attempts(&mut self, first: Start, program: &Program) -> Course {
        let mut start = first;
        loop {
            self.state.restarts = start.restart;
            self.state.max_restarts = start.max_restarts;
            self.state.world_size = start.world_size;
            self.state.run_id.clone_from(&start.run_id);
            let mut course = self.attempt(program, &start);
            match course.next.take() {
                Some(next) => start = next,
                None => return course,
            }
        }
    }

    /// The run's folder on the launcher of rank 0.
    fn make_folder(&mut self) -> Result<(), Trouble> {
        if let Some(log_dir) = &self.args.log_dir {
            self.folder = Some(Folder::create(log_dir, &self.state.run_id)?);
            return Ok(());
        }
        self.folder = self.temporary_folder();
        Ok(())
    }

    /// A folder for error files; kept when log files were asked for without a place for them.
    fn temporary_folder(&mut self) -> Option<Folder> {
        let keep = self.routes.any_file();
        match Folder::temporary(keep) {
            Ok(folder) => {
                if keep {
                    self.output.say(&format!("log files are in {}", folder.path().display()));
                }
                Some(folder)
            }
            Err(error) => {
                self.output.say(&format!(
                    "no temporary folder can be made ({error}), so there are no error files; \
                     TMPDIR chooses another place"
                ));
                None
            }
        }
    }

    /// Notes a new status in the run's folder; a full disk is said once.
    fn change(&mut self, status: Status, exit_code: Option<u8>) {
        self.state.status = status;
        self.state.exit_code = exit_code;
        self.state.changed_unix_s = folder::unix_now_s();
        let Some(folder) = &self.folder else { return };
        if let Err(error) = folder.write_state(&self.state)
            && !self.state_trouble
        {
            self.state_trouble = true;
            let place = folder.path().display().to_string();
            self.output.say(&format!("cannot note the state of the run in {place}: {error}"));
        }
    }

    fn close(&mut self, code: u8) {
        if !matches!(self.state.status, Status::Succeeded | Status::Failed | Status::Ended) {
            self.change(Status::Failed, Some(code));
        }
        self.guard = None;
        self.folder = None;
        let (signals, endings) = (&mut self.signals, &self.ending_signals);
        // Whoever has asked the run to end has little patience with a pager or a file server.
        let told = self.state.status == Status::Ended;
        let began = Instant::now();
        self.output.finish(|| {
            interrupted(signals, endings, Duration::ZERO).is_some()
                || (told && began.elapsed() >= LAST_WORDS_LIMIT)
        });
    }
}

impl Finish {
    fn success() -> Self {
        Self { code: 0, why: String::new() }
    }

    fn by_signal(signal: i32) -> Self {
        let code = u8::try_from(128 + signal).unwrap_or(1);
        Self { code, why: format!("ended by {}", sys::signal_name(signal)) }
    }
}

/// Waits a while; a signal that ends the run ends the wait.
fn interrupted(signals: &mut Signals, endings: &[i32], wait: Duration) -> Option<i32> {
    let end = Instant::now() + wait;
    loop {
        if let Some(signal) = signals.take().into_iter().find(|signal| endings.contains(signal)) {
            return Some(signal);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        sys::wait_readable(&[signals.stream().as_fd()], left);
    }
}

fn ending_signals(args: &Args) -> Result<Vec<i32>, Trouble> {
    let number = |name: &String| {
        let number = sys::signal_number(name);
        number.filter(|number| !matches!(*number, SIGKILL | SIGSTOP | SIGCHLD)).ok_or_else(|| {
            Trouble::usage(format!(
                "--signals-to-handle: {name} is no signal that can be handled; expected names \
                 such as SIGTERM,SIGINT"
            ))
        })
    };
    args.signals_to_handle.iter().map(number).collect()
}

fn grace(env: &Env) -> Result<f64, Trouble> {
    let key = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    let Some(value) = env.get(key) else { return Ok(GRACE_SECONDS) };
    value.parse().ok().filter(|seconds| (0.0..=1e9).contains(seconds)).ok_or_else(|| {
        Trouble::usage(format!("{key} is {value:?}: expected a number of seconds, not negative"))
    })
}

/// A name that no other run has: Slurm's job and step, else time and process id.
fn new_run_id(env: &Env) -> String {
    if let (Some(job), Some(step)) = (env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID")) {
        return format!("slurm-{job}.{step}");
    }
    format!("run-{}-{}", folder::unix_now_s(), std::process::id())
}

fn first_state(args: &Args, run_id: String) -> State {
    let words = args.command.iter().map(|word| word.to_string_lossy());
    State {
        run_id,
        command: words.collect::<Vec<_>>().join(" "),
        host: sys::host_name(),
        launcher_pid: std::process::id(),
        status: Status::Waiting,
        world_size: 0,
        restarts: 0,
        max_restarts: args.max_restarts,
        started_unix_s: folder::unix_now_s(),
        changed_unix_s: folder::unix_now_s(),
        exit_code: None,
        root_causes: Vec::new(),
    }
}

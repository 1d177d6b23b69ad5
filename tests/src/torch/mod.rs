//! Runs the body of a test as several real ranks: the test binary starts itself once per rank, and
//! the ranks meet over the loopback. Knows nothing of what is tested.

pub mod models;
pub mod python;

use std::io::Read;
use std::net::{Ipv6Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tch_ddp::{Backend, GroupOptions, Launch, ProcessGroup};

const TEST_VARIABLE: &str = "TCH_DDP_TEST";
const FOLDER_VARIABLE: &str = "TCH_DDP_TEST_FOLDER";
const VALUE_VARIABLE: &str = "TCH_DDP_TEST_VALUE";

/// The name of the test function that calls it, as libtest knows it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        fn name_of<T>(_: T) -> &'static str {
            std::any::type_name::<T>()
        }
        // `crate::path::to::test::here`, without the crate and `here`; closures do not count.
        let name = name_of(here).trim_end_matches("::here").replace("::{{closure}}", "");
        name.split_once("::").map_or(name.clone(), |(_, test)| test.to_owned())
    }};
}

/// One test, as the parent that starts ranks or as one of them.
#[derive(Debug, Clone)]
pub struct Ranks {
    test: String,
    world_size: usize,
    timeout: Duration,
    grace: Duration,
    value: String,
    hosts: Option<Hosts>,
}

/// Network namespaces that stand for machines, one rank on each.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Their names, in rank order.
    pub namespaces: Vec<String>,
    /// The address of the first one.
    pub main_address: String,
}

/// How one rank ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status; `None` if it had to be killed because it hung.
    pub status: Option<ExitStatus>,
    /// Everything it printed, both streams.
    pub output: String,
    /// From the start of all ranks to its end.
    pub elapsed: Duration,
    /// The body was reached.
    pub ran: bool,
}

impl Outcome {
    /// Ran the body and ended by itself with status 0.
    pub fn is_success(&self) -> bool {
        self.ran && self.status.is_some_and(|status| status.success())
    }

    /// Ran the body and ended by itself with another status.
    pub fn is_failure(&self) -> bool {
        self.ran && self.status.is_some_and(|status| !status.success())
    }
}

impl Ranks {
    /// `test` is [`test_name!`](crate::test_name).
    pub fn new(test: impl Into<String>, world_size: usize) -> Self {
        let (test, value) = (test.into(), String::new());
        let (timeout, grace) = (Duration::from_mins(1), Duration::from_secs(15));
        Self { test, world_size, timeout, grace, value, hosts: None }
    }

    /// How long the ranks may take before they are killed.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a rank may go on once all others have ended.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// A word for the ranks, as in the case to run.
    #[must_use]
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
        self
    }

    /// Runs each rank in a network namespace of its own.
    #[must_use]
    pub fn hosts(mut self, hosts: Hosts) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// In the parent: starts the ranks and demands that all succeed. In a rank: runs `body`.
    ///
    /// # Panics
    /// A rank failed or hung; with everything the ranks printed.
    pub fn run(&self, body: impl FnOnce(&Rank) -> Result<()>) {
        let Some(outcomes) = self.outcomes(body) else { return };
        assert!(outcomes.iter().all(Outcome::is_success), "{}", report(&outcomes));
    }

    /// In the parent: starts the ranks and tells how they ended. In a rank: runs `body`, ends the
    /// process with its result, as a `main` would, and returns nothing.
    ///
    /// # Panics
    /// The ranks cannot be started.
    pub fn outcomes(&self, body: impl FnOnce(&Rank) -> Result<()>) -> Option<Vec<Outcome>> {
        self.outcomes_while(body, |_| {})
    }

    /// As [`outcomes`](Ranks::outcomes); while the ranks run, the parent does `meanwhile`, which is
    /// given their shared folder.
    ///
    /// # Panics
    /// The ranks cannot be started.
    pub fn outcomes_while(
        &self,
        body: impl FnOnce(&Rank) -> Result<()>,
        meanwhile: impl FnOnce(&Path),
    ) -> Option<Vec<Outcome>> {
        self.outcomes_around(body, meanwhile, |_| {})
    }

    /// As [`outcomes`](Ranks::outcomes); the parent does `afterwards`, which is given the ranks'
    /// shared folder, before it is removed.
    ///
    /// # Panics
    /// The ranks cannot be started.
    pub fn outcomes_then(
        &self,
        body: impl FnOnce(&Rank) -> Result<()>,
        afterwards: impl FnOnce(&Path),
    ) -> Option<Vec<Outcome>> {
        self.outcomes_around(body, |_| {}, afterwards)
    }

    fn outcomes_around(
        &self,
        body: impl FnOnce(&Rank) -> Result<()>,
        meanwhile: impl FnOnce(&Path),
        afterwards: impl FnOnce(&Path),
    ) -> Option<Vec<Outcome>> {
        match std::env::var(TEST_VARIABLE) {
            Ok(test) if test == self.test => {
                // A case of another world size or value in the same test is not ours.
                let rank = Rank::from_env();
                if rank.launch.world_size() != self.world_size || rank.value != self.value {
                    return None;
                }
                run_rank(&rank, body);
                None
            }
            Ok(_) => None,
            Err(_) => {
                let outcomes = self.start(meanwhile, afterwards);
                Some(outcomes.expect("the ranks can be started"))
            }
        }
    }

    fn start(
        &self,
        meanwhile: impl FnOnce(&Path),
        afterwards: impl FnOnce(&Path),
    ) -> Result<Vec<Outcome>> {
        let folder = tempfile_folder(&self.test)?;
        // Rank 0 inherits the bound socket as its standard input: the port cannot be lost.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind(("0.0.0.0", 0)))?;
        let port = listener.local_addr()?.port();
        let mut socket = Some(OwnedFd::from(listener));
        let started = Instant::now();
        let mut running = Vec::new();
        for rank in 0..self.world_size {
            let mut command = self.command(rank, port, &folder)?;
            match socket.take().filter(|_| self.hosts.is_none()) {
                Some(socket) => command.stdin(socket).env("TCH_DDP_LISTEN_FD", "0"),
                None => command.stdin(Stdio::null()),
            };
            running.push(Running::start(&mut command)?);
        }
        meanwhile(&folder);
        let mut outcomes = self.wait_for(running, started);
        for (rank, outcome) in outcomes.iter_mut().enumerate() {
            // libtest is content with running nothing, should a name not match.
            outcome.ran = folder.join(format!("ran-{rank}")).exists();
        }
        afterwards(&folder);
        std::fs::remove_dir_all(&folder)?;
        Ok(outcomes)
    }

    fn wait_for(&self, mut running: Vec<Running>, started: Instant) -> Vec<Outcome> {
        let mut others_ended = None;
        while running.iter().any(|rank| rank.ended.is_none()) {
            for rank in &mut running {
                rank.look();
            }
            let n_running = running.iter().filter(|rank| rank.ended.is_none()).count();
            if n_running == 1 && running.len() > 1 {
                others_ended.get_or_insert_with(Instant::now);
            }
            let is_late = others_ended.is_some_and(|since: Instant| since.elapsed() > self.grace);
            if is_late || started.elapsed() > self.timeout {
                running.iter_mut().for_each(Running::kill);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        running.into_iter().map(|rank| rank.outcome(started)).collect()
    }

    fn command(&self, rank: usize, port: u16, folder: &Path) -> Result<Command> {
        let program = std::env::current_exe()?;
        let mut command = match &self.hosts {
            None => Command::new(program),
            Some(hosts) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &hosts.namespaces[rank]]).arg(program);
                command
            }
        };
        let (local_rank, local_world_size) =
            if self.hosts.is_some() { (0, 1) } else { (rank, self.world_size) };
        let address = self.hosts.as_ref().map_or("127.0.0.1", |hosts| &hosts.main_address);
        command
            .args([self.test.as_str(), "--exact", "--nocapture", "--test-threads=1"])
            .env(TEST_VARIABLE, &self.test)
            .env(FOLDER_VARIABLE, folder)
            .env(VALUE_VARIABLE, &self.value)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", local_rank.to_string())
            .env("WORLD_SIZE", self.world_size.to_string())
            .env("LOCAL_WORLD_SIZE", local_world_size.to_string())
            .env("MASTER_ADDR", address)
            .env("MASTER_PORT", port.to_string())
            .env("OMP_NUM_THREADS", "1");
        Ok(command)
    }
}

/// This process, as one rank of a test.
#[derive(Debug)]
pub struct Rank {
    /// From the environment the parent set.
    pub launch: Launch,
    /// A folder all ranks of the test share; it is removed afterwards.
    pub folder: PathBuf,
    /// The word given to [`Ranks::value`].
    pub value: String,
}

impl Rank {
    fn from_env() -> Self {
        let launch = Launch::from_env().expect("the parent set the launch");
        let folder = std::env::var(FOLDER_VARIABLE).expect("the parent set the folder").into();
        let value = std::env::var(VALUE_VARIABLE).unwrap_or_default();
        Self { launch, folder, value }
    }

    /// The group of all ranks, over Gloo.
    ///
    /// # Errors
    /// They do not meet.
    pub fn group(&self, timeout: Duration) -> Result<ProcessGroup> {
        let options = GroupOptions { backend: Backend::Gloo, timeout };
        Ok(ProcessGroup::init(&self.launch, options)?)
    }
}

fn run_rank(rank: &Rank, body: impl FnOnce(&Rank) -> Result<()>) {
    tch::set_num_threads(1);
    let mark = rank.folder.join(format!("ran-{}", rank.launch.rank()));
    std::fs::write(mark, "").expect("the shared folder is writable");
    // A panic unwinds to libtest, which ends the process with 101 after dropping everything.
    if let Err(error) = body(rank) {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

/// What the ranks printed, for a failed test.
pub fn report(outcomes: &[Outcome]) -> String {
    let parts = outcomes.iter().enumerate().map(|(rank, outcome)| {
        let ended = match outcome.status {
            _ if !outcome.ran => "did not reach the test's body".to_owned(),
            Some(status) => status.to_string(),
            None => "killed: it hung".to_owned(),
        };
        format!("--- rank {rank} ({ended}, {:?})\n{}", outcome.elapsed, outcome.output)
    });
    parts.collect::<Vec<_>>().join("\n")
}

struct Running {
    child: Child,
    readers: Vec<JoinHandle<String>>,
    /// When it ended, and how; no status if it had to be killed.
    ended: Option<(Instant, Option<ExitStatus>)>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let readers = vec![read_all(stdout), read_all(stderr)];
        Ok(Self { child, readers, ended: None })
    }

    fn look(&mut self) {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some((Instant::now(), Some(status)));
        }
    }

    fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            self.ended = Some((Instant::now(), None));
        }
    }

    fn outcome(self, started: Instant) -> Outcome {
        let (at, status) = self.ended.unwrap_or((started, None));
        let parts = self.readers.into_iter().map(|reader| reader.join().unwrap_or_default());
        Outcome { status, output: parts.collect(), elapsed: at - started, ran: false }
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn tempfile_folder(test: &str) -> Result<PathBuf> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("tch-ddp-{}-{}-{number}", std::process::id(), test.replace("::", "-"));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

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
    value: String,
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
        Self { test, world_size, timeout: Duration::from_mins(1), value }
    }

    /// How long the ranks may take before they are killed.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// A word for the ranks, as in the case to run.
    #[must_use]
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
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
            Err(_) => Some(self.start().expect("the ranks can be started")),
        }
    }

    fn start(&self) -> Result<Vec<Outcome>> {
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
            match socket.take() {
                Some(socket) => command.stdin(socket).env("TCH_DDP_LISTEN_FD", "0"),
                None => command.stdin(Stdio::null()),
            };
            running.push(Running::start(&mut command)?);
        }
        let mut outcomes: Vec<Outcome> =
            running.into_iter().map(|rank| rank.wait(started, self.timeout)).collect();
        for (rank, outcome) in outcomes.iter_mut().enumerate() {
            // libtest is content with running nothing, should a name not match.
            outcome.ran = folder.join(format!("ran-{rank}")).exists();
        }
        std::fs::remove_dir_all(&folder)?;
        Ok(outcomes)
    }

    fn command(&self, rank: usize, port: u16, folder: &Path) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([self.test.as_str(), "--exact", "--nocapture", "--test-threads=1"])
            .env(TEST_VARIABLE, &self.test)
            .env(FOLDER_VARIABLE, folder)
            .env(VALUE_VARIABLE, &self.value)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", self.world_size.to_string())
            .env("LOCAL_WORLD_SIZE", self.world_size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
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
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let readers = vec![read_all(stdout), read_all(stderr)];
        Ok(Self { child, readers })
    }

    fn wait(mut self, started: Instant, timeout: Duration) -> Outcome {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if started.elapsed() < timeout => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    break None;
                }
            }
        };
        let elapsed = started.elapsed();
        let parts = self.readers.into_iter().map(|reader| reader.join().unwrap_or_default());
        Outcome { status, output: parts.collect(), elapsed, ran: false }
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

//! What the launcher's tests share: start `ddp-run` in a clean environment, wait for it within
//! a bound, and see that it has left nothing behind.

pub mod random;

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{binaries, repository};

/// Variables of launchers and schedulers that a test must not inherit.
const FOREIGN: &[&str] =
    &["SLURM_", "OMPI_", "PMIX_", "PMI_", "PET_", "TORCHELASTIC_", "KUBERNETES_", "OMP_"];
const FOREIGN_NAMES: &[&str] =
    &["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED"];

/// Makes names differ within a test program.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A launcher to be started, or started, with a mark that all its processes inherit.
pub struct Launcher {
    pub command: Command,
    mark: String,
    /// Must be free again when all is over.
    port: Option<u16>,
}

/// `ddp-run` with these arguments.
pub fn ddp_run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Launcher {
    let mut command = Command::new(binaries::ddp_run());
    command.args(args);
    Launcher::new(&command)
}

/// The same command, which takes Ctrl-C even where these tests run in the background of a shell:
/// that ignores SIGINT, and what it starts inherits so.
fn with_default_sigint(command: &Command) -> Command {
    let mut reset = Command::new("env");
    reset.args(["--default-signal=INT", "--"]).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => reset.env(key, value),
            None => reset.env_remove(key),
        };
    }
    command.get_current_dir().map(|folder| reset.current_dir(folder));
    reset
}

/// `ddp-run ARGS -- sh -c SCRIPT`.
pub fn shell(args: &str, script: &str) -> Launcher {
    let args = args.split_whitespace().chain(["--", "sh", "-c", script]);
    ddp_run(args.map(str::to_owned))
}

impl Launcher {
    /// Any command that starts a launcher, made safe for a test.
    pub fn new(command: &Command) -> Self {
        let mut command = with_default_sigint(command);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let mark = format!("mark-{}-{count}-{}", std::process::id(), now.as_nanos());
        for (key, _) in std::env::vars_os() {
            let Some(name) = key.to_str() else { continue };
            let foreign = FOREIGN.iter().any(|prefix| name.starts_with(prefix));
            if foreign || FOREIGN_NAMES.contains(&name) {
                command.env_remove(name);
            }
        }
        command.env("DDP_TEST_MARK", &mark).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, mark, port: None }
    }

    /// Puts rank 0 on some port, which must be free again afterwards.
    #[must_use]
    pub fn with_port(mut self) -> Self {
        let port = some_port();
        self.port = Some(port);
        self.env("PET_MASTER_PORT", &port.to_string())
    }

    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    /// Several variables, as `KEY=VALUE KEY=VALUE`.
    #[must_use]
    pub fn envs(mut self, pairs: &str) -> Self {
        self.command.envs(pairs.split_whitespace().filter_map(|pair| pair.split_once('=')));
        self
    }

    pub fn start(mut self) -> Started {
        let began = Instant::now();
        let mut child = self.command.spawn().expect("the launcher starts");
        let out = collect(child.stdout.take());
        let err = collect(child.stderr.take());
        let (mark, port) = (self.mark, self.port);
        Started { child, mark, port, began, out: Some(out), err: Some(err) }
    }

    /// Runs to the end; more than `limit_s` seconds is a failure.
    #[track_caller]
    pub fn run(self, limit_s: f64) -> Ran {
        self.start().wait(limit_s)
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A launcher at work.
pub struct Started {
    pub child: Child,
    mark: String,
    port: Option<u16>,
    began: Instant,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
}

/// A launcher that has ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    pub took: Duration,
    mark: String,
    port: Option<u16>,
}

impl Started {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the launcher alone.
    pub fn signal(&self, name: &str) {
        kill(name, self.pid());
    }

    /// Waits until something is the case; a failure if the launcher ends, or after ten seconds.
    #[track_caller]
    pub fn until(&mut self, what: &str, is_so: impl FnMut(&[i32]) -> bool) {
        self.until_within(10.0, what, is_so);
    }

    #[track_caller]
    pub fn until_within(
        &mut self,
        limit_s: f64,
        what: &str,
        mut is_so: impl FnMut(&[i32]) -> bool,
    ) {
        let end = Instant::now() + Duration::from_secs_f64(limit_s);
        while !is_so(&self.processes()) {
            assert!(Instant::now() < end, "{what} did not come about within {limit_s} s");
            assert!(self.child.try_wait().unwrap().is_none(), "the launcher ended before {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ranks that have become their program, with their process ids.
    pub fn ranks(&self) -> Vec<(usize, i32)> {
        let rank = |pid: i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let pairs = String::from_utf8_lossy(&environment).into_owned();
            let rank = pairs.split('\0').find_map(|pair| pair.strip_prefix("RANK="))?;
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let is_program = !String::from_utf8_lossy(&command).contains("__rank");
            is_program.then_some((rank.parse().ok()?, pid))
        };
        self.processes().into_iter().filter_map(rank).collect()
    }

    #[track_caller]
    pub fn wait(mut self, limit_s: f64) -> Ran {
        let limit = Duration::from_secs_f64(limit_s);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.began.elapsed() > limit {
                let _ = self.child.kill();
                let err = self.err.take().unwrap().join().unwrap();
                panic!("the launcher was still at work after {limit_s} s; it said:\n{err}");
            }
            thread::sleep(Duration::from_millis(2));
        };
        let took = self.began.elapsed();
        Ran {
            code: status.code(),
            out: self.out.take().unwrap().join().unwrap(),
            err: self.err.take().unwrap().join().unwrap(),
            took,
            mark: self.mark.clone(),
            port: self.port,
        }
    }

    /// Processes of this launcher, itself included.
    pub fn processes(&self) -> Vec<i32> {
        marked(&self.mark)
    }
}

impl Ran {
    /// The usual end of a fault: this exit code, these words said, and nothing left behind.
    #[track_caller]
    pub fn ended(&self, code: i32, words: &[&str]) -> &Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} was not said: {self:#?}");
        }
        self.left_nothing()
    }

    #[track_caller]
    pub fn left_nothing(&self) -> &Self {
        let end = Instant::now() + Duration::from_secs(2);
        loop {
            let left = marked(&self.mark);
            if left.is_empty() {
                self.port.into_iter().for_each(port_is_free);
                return self;
            }
            assert!(Instant::now() < end, "processes {left:?} were left: {self:#?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Living processes that have a mark in their environment.
fn marked(mark: &str) -> Vec<i32> {
    let mark = format!("DDP_TEST_MARK={mark}");
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_marked).collect()
}

pub fn kill(signal: &str, pid: u32) {
    let pid = pid.to_string();
    let status = Command::new("kill").args(["-s", signal, &pid]).status().unwrap();
    assert!(status.success(), "kill -s {signal} {pid}");
}

/// Whether the port can be had by anybody again.
#[track_caller]
pub fn port_is_free(port: u16) {
    TcpListener::bind(("0.0.0.0", port)).unwrap_or_else(|error| panic!("port {port}: {error}"));
}

/// A port that nobody has now, below the automatic ones; tests in parallel get different ones.
pub fn some_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 11000 + (std::process::id() % 4000) as u16;
    loop {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed) * 7;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// Lines of one rank, without the prefix.
pub fn lines_of(text: &str, rank: usize) -> Vec<&str> {
    let prefix = format!("[rank {rank}] ");
    text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect()
}

pub fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

/// Waits for launchers that must all end well.
#[track_caller]
pub fn all_succeed(started: impl IntoIterator<Item = Started>, limit_s: f64) {
    // All are started before the first is waited for.
    let started: Vec<Started> = started.into_iter().collect();
    for started in started {
        started.wait(limit_s).ended(0, &[]);
    }
}

/// The state of the run that logs here.
pub fn run_state(logs: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(logs.join("run.json")).ok()?).ok()
}

/// The largest difference between two files of numbers, one per line.
#[track_caller]
pub fn difference(left: &Path, right: &Path) -> f64 {
    let numbers = |path: &Path| -> Vec<f64> {
        repository::read(path).lines().map(|line| line.parse().unwrap()).collect()
    };
    let (left, right) = (numbers(left), numbers(right));
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f64::max)
}

/// The `torchrun` of the Python installation that this checkout's libtorch belongs to.
pub fn torchrun() -> Option<PathBuf> {
    let torch = fs::canonicalize(repository::root().join(".libtorch")).ok()?;
    let torchrun = torch.ancestors().nth(4)?.join("bin/torchrun");
    if torchrun.exists() {
        return Some(torchrun);
    }
    eprintln!("skipped: the libtorch of this checkout belongs to no Python; see `cargo x setup`");
    None
}

/// Two network namespaces joined by a cable; gone when dropped.
pub struct TwoMachines {
    pub names: [String; 2],
}

impl TwoMachines {
    pub fn new() -> Option<Self> {
        let has_ip = Command::new("ip").arg("-V").output().is_ok();
        if !is_root() || !has_ip {
            eprintln!("skipped: network namespaces need root and the program ip");
            return None;
        }
        let id =
            COUNT.fetch_add(1, Ordering::Relaxed) + 100 * (std::process::id() as usize % 10000);
        let names = [0, 1].map(|machine| format!("ddp{id}-{machine}"));
        let [a, b] = &names;
        let (va, vb) = (format!("v{a}"), format!("v{b}"));
        let script = format!(
            "set -e; ip netns add {a}; ip netns add {b}
             ip link add {va} netns {a} type veth peer name {vb} netns {b}
             ip -n {a} addr add 10.87.0.1/24 dev {va}; ip -n {b} addr add 10.87.0.2/24 dev {vb}
             ip -n {a} link set {va} up; ip -n {b} link set {vb} up
             ip -n {a} link set lo up; ip -n {b} link set lo up"
        );
        let machines = Self { names };
        let made = Command::new("sh").args(["-c", &script]).output().unwrap();
        if !made.status.success() {
            eprintln!("skipped: {}", String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Some(machines)
    }

    /// The end of the cable on a machine.
    pub fn interface(&self, machine: usize) -> String {
        format!("v{}", self.names[machine])
    }

    /// A launcher on a machine, as that node of two; the first has 10.87.0.1.
    pub fn launcher(&self, node: usize, args: &str, program: &[String]) -> Launcher {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[node]]).arg(binaries::ddp_run());
        command.args(["--nnodes", "2", "--node-rank", &node.to_string()]);
        command.args(["--master-addr", "10.87.0.1"]).args(args.split_whitespace());
        command.arg("--").args(program);
        Launcher::new(&command)
    }
}

impl Drop for TwoMachines {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

//! Who failed when a collective fails. gloo only says that a connection closed or a wait timed
//! out; here the ranks hold a roll call over the key-value store, answered by a small thread even
//! while the main thread is blocked, and agree on one verdict. It never changes training.
//!
//! Keys, under the group's prefix: `mail/<rank>` wakes that rank's thread; `alive/<rank>` is its
//! answer; `left/<rank>` says that it ended and how; `reporter` elects who calls; `verdict` is
//! what was found; `seen/<rank>` that the verdict arrived.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ffi::Store;

/// How long a rank has to answer the roll call. Its answering thread does nothing else, so a rank
/// that is silent for this long is dead, stopped or unreachable.
const ROLL_CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait for the verdict of another rank that calls the roll.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the rank that keeps the store stays for the others' sake when it ends.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// Waits are cut into pieces no longer than this and repeated.
const WAIT_PIECE: Duration = Duration::from_hours(24);

/// What a rank is doing, as told to the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Answer {
    step: u64,
    /// Empty outside of any collective.
    operation: String,
    seconds: u64,
}

/// How a rank ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Farewell {
    step: u64,
    panicked: bool,
}

/// Which ranks are to blame, and why, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) culprits: Vec<usize>,
    pub(crate) diagnosis: String,
}

/// The state of this rank that its answering thread reads.
#[derive(Debug)]
pub(crate) struct Status {
    step: AtomicU64,
    operation: Mutex<(String, Instant)>,
    verdict: Mutex<Option<Verdict>>,
    /// The rank that keeps the store said goodbye.
    host_left: Mutex<Option<Farewell>>,
    stopping: AtomicBool,
}

impl Status {
    fn new() -> Self {
        Self {
            step: AtomicU64::new(0),
            operation: Mutex::new((String::new(), Instant::now())),
            verdict: Mutex::new(None),
            host_left: Mutex::new(None),
            stopping: AtomicBool::new(false),
        }
    }

    fn answer(&self) -> Answer {
        let (operation, since) = &*lock(&self.operation);
        Answer {
            step: self.step.load(Ordering::Relaxed),
            operation: operation.clone(),
            seconds: since.elapsed().as_secs(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who keeps the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// This global rank.
    Rank(usize),
    /// `torchrun`, which outlives the ranks.
    Launcher,
}

/// This rank's line to the others outside of collectives; inert in a world of one.
#[derive(Debug)]
pub(crate) struct Peers {
    link: Arc<Link>,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// `store` carries the group's prefix; `connection` is a second connection to it, for the
    /// answering thread (`None` in a world of one).
    pub(crate) fn new(
        rank: usize,
        globals: Vec<usize>,
        is_whole: bool,
        store: Arc<Store>,
        connection: Option<Store>,
        host: Host,
    ) -> Self {
        let status = Arc::new(Status::new());
        let thread = connection.and_then(|connection| {
            let status = Arc::clone(&status);
            std::thread::Builder::new()
                .name("tch-ddp-roll-call".to_owned())
                .spawn(move || answer_roll_call(rank, &connection, &status))
                .ok()
        });
        let is_lost = AtomicBool::new(false);
        let link = Arc::new(Link { rank, globals, is_whole, host, store, status, is_lost });
        Self { link, thread }
    }

    pub(crate) fn step(&self) -> u64 {
        self.link.step()
    }

    /// Notes how many steps the wrapper that is furthest has done.
    pub(crate) fn note_step(&self, step: u64) {
        self.link.status.step.fetch_max(step, Ordering::Relaxed);
    }

    /// Notes that this rank is inside `operation` until the guard is dropped.
    pub(crate) fn enter(&self, operation: &str) -> Inside<'_> {
        *lock(&self.link.status.operation) = (operation.to_owned(), Instant::now());
        Inside(&self.link.status)
    }

    /// Finds out who is to blame for a failed collective; the same verdict on all ranks that can
    /// still be reached. Takes seconds at most.
    pub(crate) fn investigate(&self, operation: &str) -> Verdict {
        if let Some(verdict) = self.link.known_verdict() {
            return verdict;
        }
        if self.link.is_alone() {
            let diagnosis = "there is no other rank".to_owned();
            return Verdict { culprits: Vec::new(), diagnosis };
        }
        let _inside = self.enter(operation);
        let reporter = self.within(ROLL_CALL_TIMEOUT, Link::elect).flatten();
        let found = reporter.and_then(|reporter| {
            let limit = VERDICT_TIMEOUT + ROLL_CALL_TIMEOUT;
            self.within(limit, move |link| link.find_verdict(reporter)).flatten()
        });
        let verdict = found.unwrap_or_else(|| self.link.host_is_gone());
        *lock(&self.link.status.verdict) = Some(verdict.clone());
        verdict
    }

    /// Tells the others that this rank gives up, and why. A verdict that is already there stays.
    pub(crate) fn accuse_self(&self, reason: &str) {
        self.confess(&format!("gave up: {reason}"));
    }

    /// As [`accuse_self`](Peers::accuse_self), for a panic while the others wait in a step: its
    /// text would otherwise stay on this rank.
    pub(crate) fn accuse_self_of_panic(&self, place: &str, text: &str) {
        self.confess(&format!("panicked in {place}: {text}"));
    }

    fn confess(&self, what: &str) {
        let link = &self.link;
        if link.is_alone() || link.known_verdict().is_some() {
            return;
        }
        let own = link.globals[link.rank];
        let diagnosis = format!("rank {own} {what}");
        let verdict = Verdict { culprits: vec![own], diagnosis };
        *lock(&link.status.verdict) = Some(verdict.clone());
        self.within(ROLL_CALL_TIMEOUT, move |link| {
            if link.elect() == Some(link.rank) {
                link.publish(&verdict);
            }
        });
    }

    /// Runs `talk` on a thread of its own, because over a broken network, or with the rank stopped
    /// that keeps the store, each of the store's calls would block for minutes. `None`: it did
    /// block, and the store is not asked again.
    fn within<T: Send + 'static>(
        &self,
        limit: Duration,
        talk: impl FnOnce(&Link) -> T + Send + 'static,
    ) -> Option<T> {
        if self.link.is_lost.load(Ordering::Relaxed) {
            return None;
        }
        let (sender, receiver) = mpsc::channel();
        let link = Arc::clone(&self.link);
        let talking = std::thread::Builder::new().name("tch-ddp-store".to_owned());
        talking.spawn(move || sender.send(talk(&link))).ok()?;
        let answer = receiver.recv_timeout(limit).ok();
        self.link.is_lost.store(answer.is_none(), Ordering::Relaxed);
        answer
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let reached = self.link.is_alone() || {
            let panicked = std::thread::panicking();
            let limit = FAREWELL_TIMEOUT + ROLL_CALL_TIMEOUT;
            self.within(limit, move |link| link.say_goodbye(panicked)).is_some()
        };
        // Where the store cannot be reached, the thread waits for it and ends with the process.
        if let Some(thread) = self.thread.take().filter(|_| reached) {
            let _ = thread.join();
        }
    }
}

/// What a rank needs to talk to the others through the store.
#[derive(Debug)]
struct Link {
    /// This rank within the group.
    rank: usize,
    /// The global ranks of the group's ranks, by which people know them.
    globals: Vec<usize>,
    /// The group is that of all ranks, whose end is the end of the program.
    is_whole: bool,
    host: Host,
    store: Arc<Store>,
    status: Arc<Status>,
    /// The store did not answer in time.
    is_lost: AtomicBool,
}

impl Link {
    fn is_alone(&self) -> bool {
        self.globals.len() == 1
    }

    /// This process keeps the store and is about to end.
    fn takes_the_store_along(&self) -> bool {
        self.is_whole && self.host == Host::Rank(self.globals[self.rank])
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.globals.len()).filter(move |rank| *rank != own)
    }

    fn step(&self) -> u64 {
        self.status.step.load(Ordering::Relaxed)
    }

    fn known_verdict(&self) -> Option<Verdict> {
        lock(&self.status.verdict).clone()
    }

    /// The rank that calls the roll: the first to ask. `None`: the store cannot be reached.
    fn elect(&self) -> Option<usize> {
        let own = self.rank.to_string();
        self.store.compare_set("reporter", "", &own).ok()?.parse().ok()
    }

    fn find_verdict(&self, reporter: usize) -> Option<Verdict> {
        let answer = json(&self.status.answer());
        self.store.set(&format!("alive/{}", self.rank), answer.as_bytes()).ok()?;
        if reporter == self.rank {
            let verdict = self.call_roll()?;
            self.publish(&verdict);
            return Some(verdict);
        }
        if !self.poll("verdict", Instant::now() + VERDICT_TIMEOUT)? {
            return None;
        }
        let verdict = parse(&self.store.get("verdict").ok()?)?;
        let _ = self.store.set(&format!("seen/{}", self.rank), b"1");
        Some(verdict)
    }

    /// Asks every other rank what it is doing and waits for the answers.
    fn call_roll(&self) -> Option<Verdict> {
        for rank in self.others() {
            self.store.set(&format!("mail/{rank}"), b"roll call").ok()?;
        }
        let deadline = Instant::now() + ROLL_CALL_TIMEOUT;
        let mut silent = Vec::new();
        let mut left = Vec::new();
        let mut outside = Vec::new();
        for rank in self.others() {
            let global = self.globals[rank];
            if self.store.check(&format!("left/{rank}")).ok()? {
                let farewell = self.store.get(&format!("left/{rank}")).ok()?;
                left.push((global, parse::<Farewell>(&farewell)?));
                continue;
            }
            let key = format!("alive/{rank}");
            if !self.poll(&key, deadline)? {
                silent.push(global);
                continue;
            }
            let answer: Answer = parse(&self.store.get(&key).ok()?)?;
            if answer.operation.is_empty() {
                outside.push((global, answer));
            }
        }
        Some(judge(&silent, &left, &outside))
    }

    fn publish(&self, verdict: &Verdict) {
        if self.store.set("verdict", json(verdict).as_bytes()).is_err() {
            return;
        }
        for rank in self.others() {
            let _ = self.store.set(&format!("mail/{rank}"), b"verdict");
        }
    }

    fn host_is_gone(&self) -> Verdict {
        if let Some(verdict) = self.known_verdict() {
            return verdict;
        }
        let Host::Rank(host) = self.host else {
            let diagnosis = "the launcher, which keeps the ranks' store, is gone".to_owned();
            return Verdict { culprits: Vec::new(), diagnosis };
        };
        let diagnosis = match &*lock(&self.status.host_left) {
            Some(farewell) => ended(host, farewell),
            None => {
                format!("rank {host}, which keeps the ranks' store, died or cannot be reached")
            }
        };
        Verdict { culprits: vec![host], diagnosis }
    }

    /// Waits, a short while, until the given key of every other innocent rank is set.
    fn linger(&self, key: &str) {
        let deadline = Instant::now() + FAREWELL_TIMEOUT;
        let culprits = self.known_verdict().map(|verdict| verdict.culprits).unwrap_or_default();
        for rank in self.others().filter(|rank| !culprits.contains(&self.globals[*rank])) {
            if self.poll(&format!("{key}/{rank}"), deadline) != Some(true) {
                return;
            }
        }
    }

    /// Whether the key is set before the deadline; `None` when the store is gone. Asks again and
    /// again because c10d prints a warning for every wait that times out.
    fn poll(&self, key: &str, deadline: Instant) -> Option<bool> {
        loop {
            if self.store.check(key).ok()? {
                return Some(true);
            }
            if Instant::now() >= deadline {
                return Some(false);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Tells the others that, and how, this rank ends, and wakes the answering thread to end too.
    fn say_goodbye(&self, panicked: bool) {
        let farewell = json(&Farewell { step: self.step(), panicked });
        let _ = self.store.set(&format!("left/{}", self.rank), farewell.as_bytes());
        if self.takes_the_store_along() {
            for rank in self.others() {
                let text = format!("host left {farewell}");
                let _ = self.store.set(&format!("mail/{rank}"), text.as_bytes());
            }
            // Without the store the others could neither read the verdict nor say goodbye.
            let failed = self.known_verdict().is_some();
            self.linger(if failed { "seen" } else { "left" });
        }
        self.status.stopping.store(true, Ordering::Relaxed);
        let _ = self.store.set(&format!("mail/{}", self.rank), b"stop");
    }
}

/// Marks the time spent inside an operation.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Status);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *lock(&self.0.operation) = (String::new(), Instant::now());
    }
}

fn answer_roll_call(rank: usize, store: &Store, status: &Status) {
    let mailbox = format!("mail/{rank}");
    let mut last = Vec::new();
    loop {
        let mail = loop {
            match store.wait(&mailbox, WAIT_PIECE).and_then(|()| store.get(&mailbox)) {
                Ok(mail) if mail != last => break mail,
                // The same letter again: the key stays set, so look now and then.
                Ok(_) if !status.stopping.load(Ordering::Relaxed) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                _ => return,
            }
        };
        let text = String::from_utf8_lossy(&mail).into_owned();
        last = mail;
        match text.as_str() {
            "stop" => return,
            "roll call" => {
                let answer = json(&status.answer());
                if store.set(&format!("alive/{rank}"), answer.as_bytes()).is_err() {
                    return;
                }
            }
            "verdict" => {
                if let Some(verdict) = store.get("verdict").ok().and_then(|text| parse(&text)) {
                    lock(&status.verdict).get_or_insert(verdict);
                }
                let _ = store.set(&format!("seen/{rank}"), b"1");
            }
            _ => {
                if let Some(farewell) = text.strip_prefix("host left ") {
                    *lock(&status.host_left) = parse(farewell.as_bytes());
                }
            }
        }
    }
}

/// Blames the dead first, then those who left, then those who do not take part.
fn judge(silent: &[usize], left: &[(usize, Farewell)], outside: &[(usize, Answer)]) -> Verdict {
    if !silent.is_empty() {
        let diagnosis = format!(
            "{} did not answer within {} s: killed, stopped, or its machine cannot be reached",
            ranks(silent),
            ROLL_CALL_TIMEOUT.as_secs()
        );
        return Verdict { culprits: silent.to_vec(), diagnosis };
    }
    if !left.is_empty() {
        let words: Vec<String> =
            left.iter().map(|(rank, farewell)| ended(*rank, farewell)).collect();
        let culprits = left.iter().map(|(rank, _)| *rank).collect();
        return Verdict { culprits, diagnosis: words.join("; ") };
    }
    if !outside.is_empty() {
        let words: Vec<String> = outside
            .iter()
            .map(|(rank, answer)| {
                format!(
                    "rank {rank} is alive but has been outside of any collective for {} s, after \
                     {} steps",
                    answer.seconds, answer.step
                )
            })
            .collect();
        let culprits = outside.iter().map(|(rank, _)| *rank).collect();
        return Verdict { culprits, diagnosis: words.join("; ") };
    }
    let diagnosis = "all ranks answer and all are inside a collective: they may call different \
                     ones, or the network between them is broken"
        .to_owned();
    Verdict { culprits: Vec::new(), diagnosis }
}

fn ended(rank: usize, farewell: &Farewell) -> String {
    let how = if farewell.panicked { "panicked" } else { "left the group (it ended or returned)" };
    format!("rank {rank} {how} after {} steps", farewell.step)
}

fn ranks(ranks: &[usize]) -> String {
    let words: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    words.join(", ")
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn parse<T: for<'de> Deserialize<'de>>(text: &[u8]) -> Option<T> {
    serde_json::from_slice(text).ok()
}

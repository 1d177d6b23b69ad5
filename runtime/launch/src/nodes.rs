//! The launchers of a run with several nodes talk to each other here: JSON lines over TCP, from
//! each launcher to that of rank 0. It agrees on ranks, passes failures on and says when to
//! start, stop and end. Elastic membership is not its job.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cluster::{Master, Placement};
use crate::failure::Failure;
use crate::port::HeldPort;
use crate::sys;
use crate::trouble::Trouble;

/// Changes with every change of the messages: launchers of two versions must not work together.
const PROTOCOL: u32 = 1;
/// A message is a line of at most this size; more is no launcher's.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// With more launchers than this only those that are missing are named.
const JOINS_SHOWN_MAX: usize = 8;
/// How long a peer may take to accept or to introduce itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// A launcher introduces itself to that of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub protocol: u32,
    pub launcher: usize,
    pub n_launchers: usize,
    pub n_local: usize,
    pub run_id: Option<String>,
    pub host: String,
    /// What a launcher stands for: a node, or a rank.
    pub unit: String,
    /// Why this launcher cannot start its ranks, if so.
    pub trouble: Option<(u8, String)>,
}

/// Start an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub restart: usize,
    pub max_restarts: usize,
    pub first_rank: usize,
    pub world_size: usize,
    pub run_id: String,
    /// Name of the run's folder in the log directory.
    pub folder: Option<String>,
}

/// The run is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Finish {
    pub code: u8,
    pub why: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Message {
    Hello(Hello),
    Refused { code: u8, why: String },
    Start(Start),
    Stop { signal: i32 },
    Finish(Finish),
    Done,
    Failed { failures: Vec<Failure>, fatal: bool },
    Ended { failures: Vec<Failure> },
    Beat,
}

/// What another launcher has said.
#[derive(Debug)]
pub(crate) enum News {
    /// All its ranks have succeeded.
    Done(usize),
    /// Ranks have failed there; `fatal` when a restart cannot help.
    Failed {
        failures: Vec<Failure>,
        fatal: bool,
    },
    /// All its ranks have ended.
    Ended {
        launcher: usize,
        failures: Vec<Failure>,
    },
    /// It is gone, or has been silent for too long.
    Lost {
        launcher: usize,
        host: String,
        why: String,
    },
    Start(Start),
    Stop {
        signal: i32,
    },
    Finish(Finish),
}

/// A connection to another launcher.
pub(crate) struct Link {
    stream: TcpStream,
    inbox: Vec<u8>,
    heard: Instant,
    sent: Instant,
    launcher: usize,
    host: String,
    n_local: usize,
    trouble: Option<(u8, String)>,
    connected: bool,
}

impl Link {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // A peer that does not read must not stop us from watching our own ranks.
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
            heard: Instant::now(),
            sent: Instant::now(),
            launcher: 0,
            host: String::new(),
            n_local: 0,
            trouble: None,
            connected: true,
        })
    }

    fn send(&mut self, message: &Message) {
        let mut line = serde_json::to_vec(message).unwrap_or_default();
        line.push(b'\n');
        // A failed write shows as the end of the stream when reading.
        if self.stream.write_all(&line).is_err() {
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
        self.sent = Instant::now();
    }

    fn lose(&mut self, why: String) -> News {
        self.connected = false;
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        News::Lost { launcher: self.launcher, host: self.host.clone(), why }
    }

    /// Reads once from a readable stream; an error says why nothing more will come.
    fn receive<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, String> {
        let mut chunk = [0; 8 << 10];
        let count = match self.stream.read(&mut chunk) {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        self.heard = Instant::now();
        self.inbox.extend_from_slice(&chunk[..count]);
        let whole = self.inbox.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if self.inbox.len() - whole > MESSAGE_BYTES_MAX {
            return Err("it sends no messages of a ddp-run launcher".into());
        }
        let lines: Vec<u8> = self.inbox.drain(..whole).collect();
        lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(serde_json::from_slice)
            .collect::<Result<_, _>>()
            .map_err(|_| "it does not speak as a ddp-run launcher of this version".to_owned())
    }
}

/// The other launchers, as seen from here.
pub(crate) enum Peers {
    /// This is rank 0's launcher; alone if there are no links.
    Leader {
        links: Vec<Link>,
    },
    Follower {
        link: Box<Link>,
    },
}

impl Peers {
    /// A run with one launcher.
    pub(crate) fn none() -> Self {
        Self::Leader { links: Vec::new() }
    }

    fn links(&self) -> &[Link] {
        match self {
            Self::Leader { links, .. } => links,
            Self::Follower { link } => std::slice::from_ref(link),
        }
    }

    fn links_mut(&mut self) -> &mut [Link] {
        match self {
            Self::Leader { links, .. } => links,
            Self::Follower { link } => std::slice::from_mut(link),
        }
    }

    pub(crate) fn is_leader(&self) -> bool {
        matches!(self, Self::Leader { .. })
    }

    /// Number of other launchers that are still connected.
    pub(crate) fn n_connected(&self) -> usize {
        self.links().iter().filter(|link| link.connected).count()
    }

    /// Number of other launchers that belong to the run.
    pub(crate) fn n_others(&self) -> usize {
        self.links().len()
    }

    /// Connections to wait for, in the order that `receive` counts in.
    pub(crate) fn streams(&self) -> Vec<(usize, BorrowedFd<'_>)> {
        let links = self.links().iter().enumerate().filter(|(_, link)| link.connected);
        links.map(|(at, link)| (at, link.stream.as_fd())).collect()
    }

    fn tell(&mut self, message: &Message) {
        for link in self.links_mut().iter_mut().filter(|link| link.connected) {
            link.send(message);
        }
    }

    /// Orders to the other launchers; from a follower to the leader they have no meaning.
    pub(crate) fn stop(&mut self, signal: i32) {
        if self.is_leader() {
            self.tell(&Message::Stop { signal });
        }
    }

    /// Ends the run on the other nodes.
    pub(crate) fn finish(&mut self, finish: &Finish) {
        if self.is_leader() {
            self.tell(&Message::Finish(finish.clone()));
        }
    }

    /// Reports to the leader.
    pub(crate) fn report_done(&mut self) {
        self.tell_leader(&Message::Done);
    }

    pub(crate) fn report_failed(&mut self, failures: Vec<Failure>, fatal: bool) {
        self.tell_leader(&Message::Failed { failures, fatal });
    }

    pub(crate) fn report_ended(&mut self, failures: Vec<Failure>) {
        self.tell_leader(&Message::Ended { failures });
    }

    fn tell_leader(&mut self, message: &Message) {
        if !self.is_leader() {
            self.tell(message);
        }
    }

    /// Starts an attempt on all nodes: `own` is this node's part, `n_local` its rank count.
    pub(crate) fn start(&mut self, own: &Start, n_local: usize) {
        let mut first_rank = n_local;
        for link in self.links_mut() {
            let start = Start { first_rank, ..own.clone() };
            first_rank += link.n_local;
            link.send(&Message::Start(start));
        }
    }

    /// Number of ranks on the other nodes.
    pub(crate) fn n_ranks(&self) -> usize {
        self.links().iter().map(|link| link.n_local).sum()
    }

    /// Why another launcher cannot start its ranks, with its exit code.
    pub(crate) fn trouble(&self, unit: &str) -> Option<(u8, String)> {
        let link = self.links().iter().find(|link| link.trouble.is_some())?;
        let (code, why) = link.trouble.clone()?;
        Some((code, format!("the launcher of {unit} {} ({}): {why}", link.launcher, link.host)))
    }

    /// Reads from a connection that is readable.
    pub(crate) fn receive(&mut self, at: usize) -> Vec<News> {
        let link = &mut self.links_mut()[at];
        let launcher = link.launcher;
        match link.receive::<Message>() {
            Ok(messages) => {
                messages.into_iter().filter_map(|message| news(launcher, message)).collect()
            }
            Err(why) => vec![link.lose(why)],
        }
    }

    /// Sends signs of life and finds those who have stopped giving any.
    pub(crate) fn keep_alive(&mut self, limit: Duration) -> Vec<News> {
        let mut lost = Vec::new();
        for link in self.links_mut().iter_mut().filter(|link| link.connected) {
            if link.sent.elapsed() > limit / 5 {
                link.send(&Message::Beat);
            }
            if link.heard.elapsed() > limit {
                lost.push(link.lose(format!("nothing was heard for {} s", limit.as_secs())));
            }
        }
        lost
    }
}

fn news(launcher: usize, message: Message) -> Option<News> {
    match message {
        Message::Done => Some(News::Done(launcher)),
        Message::Failed { failures, fatal } => Some(News::Failed { failures, fatal }),
        Message::Ended { failures } => Some(News::Ended { launcher, failures }),
        Message::Start(start) => Some(News::Start(start)),
        Message::Stop { signal } => Some(News::Stop { signal }),
        Message::Finish(finish) => Some(News::Finish(finish)),
        Message::Refused { code, why } => Some(News::Finish(Finish {
            code,
            why: format!("node 0 sent this launcher away: {why}"),
        })),
        Message::Beat | Message::Hello(_) => None,
    }
}

/// What a wait for other launchers is interrupted by: a signal, say.
pub(crate) type Interrupted<'a> = &'a mut dyn FnMut(Duration) -> Option<i32>;

/// How a wait for other launchers can end badly.
pub(crate) enum Apart {
    Signal(i32),
    Trouble(Trouble),
}

impl From<Trouble> for Apart {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// How rank 0's launcher waits for the others.
pub(crate) struct Patience {
    pub join_limit: Duration,
    /// Silence after which one that has joined counts as gone again.
    pub silence_limit: Duration,
}

/// Waits, as rank 0's launcher, until all others have joined.
pub(crate) fn gather(
    port: &HeldPort,
    own: &Hello,
    patience: &Patience,
    say: &mut dyn FnMut(&str),
    pause: Interrupted<'_>,
) -> Result<Peers, Apart> {
    let listener = port.listen()?;
    listener.set_nonblocking(true).map_err(|error| no_listener(&error))?;
    let mut links: Vec<Link> = Vec::new();
    let mut guests: Vec<Link> = Vec::new();
    let end = Instant::now() + patience.join_limit;
    while links.len() + 1 < own.n_launchers {
        let mut fds = vec![listener.as_fd()];
        fds.extend(guests.iter().chain(&links).map(|link| link.stream.as_fd()));
        sys::wait_readable(&fds, Duration::from_millis(50));
        if let Some(signal) = pause(Duration::ZERO) {
            return Err(Apart::Signal(signal));
        }
        while let Ok((stream, _)) = listener.accept() {
            guests.extend(Link::new(stream));
        }
        guests = introduce(guests, own, &mut links, say);
        links = still_there(links, &own.unit, patience.silence_limit, say);
        if Instant::now() >= end {
            return Err(missing(own, &links, patience.join_limit).into());
        }
    }
    links.sort_by_key(|link| link.launcher);
    Ok(Peers::Leader { links })
}

/// Those who have joined and not gone again meanwhile; one that was started anew may come back.
fn still_there(
    links: Vec<Link>,
    unit: &str,
    limit: Duration,
    say: &mut dyn FnMut(&str),
) -> Vec<Link> {
    let mut peers = Peers::Leader { links };
    let ready: Vec<usize> = {
        let streams = peers.streams();
        let fds: Vec<_> = streams.iter().map(|(_, fd)| *fd).collect();
        let ready = sys::wait_readable(&fds, Duration::ZERO);
        streams.iter().zip(ready).filter(|(_, ready)| *ready).map(|((at, _), _)| *at).collect()
    };
    let mut news: Vec<News> = ready.into_iter().flat_map(|at| peers.receive(at)).collect();
    news.extend(peers.keep_alive(limit));
    for news in news {
        if let News::Lost { launcher, host, why } = news {
            say(&format!("{unit} {launcher} ({host}) has gone again: {why}"));
        }
    }
    match peers {
        Peers::Leader { links } => links.into_iter().filter(|link| link.connected).collect(),
        Peers::Follower { .. } => Vec::new(),
    }
}

/// Hears those who have connected: each becomes a link, stays a guest, or is sent away.
fn introduce(
    guests: Vec<Link>,
    own: &Hello,
    links: &mut Vec<Link>,
    say: &mut dyn FnMut(&str),
) -> Vec<Link> {
    let mut still = Vec::new();
    for mut guest in guests {
        if !sys::wait_readable(&[guest.stream.as_fd()], Duration::ZERO)[0] {
            if guest.heard.elapsed() < PATIENCE {
                still.push(guest);
            }
            continue;
        }
        match guest.receive::<Message>().map(|mut messages| messages.pop()) {
            Ok(None) => still.push(guest),
            Ok(Some(Message::Hello(hello))) => match refuse(&hello, own, links) {
                None => {
                    if own.n_launchers <= JOINS_SHOWN_MAX {
                        say(&format!(
                            "{} {} ({}) has joined",
                            own.unit, hello.launcher, hello.host
                        ));
                    }
                    guest.launcher = hello.launcher;
                    guest.host = hello.host;
                    guest.n_local = hello.n_local;
                    guest.trouble = hello.trouble;
                    links.push(guest);
                }
                Some(why) => {
                    let Hello { unit, launcher, host, .. } = &hello;
                    say(&format!("sent away {unit} {launcher} ({host}): {why}"));
                    guest.send(&Message::Refused { code: 2, why });
                }
            },
            // Not one of ours: a port scanner, a rank of another run.
            Ok(Some(_)) | Err(_) => {}
        }
    }
    still
}

/// Why a launcher cannot be part of this run.
fn refuse(hello: &Hello, own: &Hello, links: &[Link]) -> Option<String> {
    let runs_differ = matches!((&hello.run_id, &own.run_id), (Some(a), Some(b)) if a != b);
    if hello.protocol != PROTOCOL {
        Some(format!(
            "it speaks protocol {}, node 0 speaks {PROTOCOL}: install one version of ddp-run \
             on all nodes",
            hello.protocol
        ))
    } else if runs_differ {
        Some(format!(
            "its run is {}, this one is {}: two runs share an address and port",
            hello.run_id.as_deref().unwrap_or_default(),
            own.run_id.as_deref().unwrap_or_default()
        ))
    } else if hello.n_launchers != own.n_launchers {
        Some(format!(
            "world sizes do not match: it was told of {} nodes, node 0 of {}; give all the same \
             --nnodes",
            hello.n_launchers, own.n_launchers
        ))
    } else if hello.launcher == 0 || hello.launcher >= own.n_launchers {
        Some(format!(
            "there is no place for a node {} beside node 0 of {}: check --node-rank",
            hello.launcher, own.n_launchers
        ))
    } else {
        let twin = links.iter().find(|link| link.launcher == hello.launcher)?;
        Some(format!(
            "node {} has joined from {} already: give each node its own --node-rank",
            hello.launcher, twin.host
        ))
    }
}

fn missing(own: &Hello, links: &[Link], limit: Duration) -> Trouble {
    let missing: Vec<_> = (1..own.n_launchers)
        .filter(|node| !links.iter().any(|link| link.launcher == *node))
        .map(|node| node.to_string())
        .collect();
    Trouble::work(format!(
        "{} of {} {unit}s have joined within {} s; missing: {unit} {}. Is ddp-run started there, \
         with this node's --master-addr and --master-port, and does the firewall let it through?",
        links.len() + 1,
        own.n_launchers,
        limit.as_secs_f64(),
        missing.join(", "),
        unit = own.unit
    ))
}

fn no_listener(error: &io::Error) -> Trouble {
    Trouble::work(format!("cannot wait for other nodes: {error}"))
}

/// Joins rank 0's launcher; tries until it is there.
pub(crate) fn join(
    master: &Master,
    hello: &Hello,
    limit: Duration,
    pause: Interrupted<'_>,
) -> Result<Peers, Apart> {
    let end = Instant::now() + limit;
    loop {
        let why = match connect(master) {
            Ok(stream) => {
                let mut link = Link::new(stream).map_err(|error| unreachable(master, &error))?;
                link.host.clone_from(&master.addr);
                link.send(&Message::Hello(hello.clone()));
                return Ok(Peers::Follower { link: Box::new(link) });
            }
            Err(error) => error,
        };
        if let Some(signal) = pause(Duration::from_millis(200)) {
            return Err(Apart::Signal(signal));
        }
        if Instant::now() >= end {
            return Err(unreachable(master, &why).into());
        }
    }
}

fn connect(master: &Master) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (master.addr.as_str(), master.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn unreachable(master: &Master, error: &io::Error) -> Trouble {
    let Master { addr, port } = master;
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "the machine is there, but no launcher listens: is ddp-run --node-rank 0 running, \
             with the same --master-port?"
        }
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => {
            "nothing answers: check the address, the interface and the firewall"
        }
        _ => "check --master-addr",
    };
    Trouble::work(format!("cannot reach node 0 at {addr}:{port}: {error}; {hint}"))
}

impl Hello {
    /// This launcher's own introduction.
    pub(crate) fn new(placement: &Placement) -> Self {
        let (n_launchers, launcher) = placement.launchers();
        Self {
            protocol: PROTOCOL,
            launcher,
            n_launchers,
            n_local: placement.n_local(),
            run_id: None,
            host: sys::host_name(),
            unit: placement.unit().to_owned(),
            trouble: None,
        }
    }
}

//! The ranks as a group: joining it, and the collectives that all of its ranks call in the same
//! order. A collective that fails names the rank to blame; after that the group is unusable.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use crate::error::{CollectiveError, Error, Result};
pub use crate::ffi::ReduceOp;
use crate::ffi::{self, Listen, Store, TorchError, TorchResult};
use crate::launch::{Launch, Meeting, is_loopback};
use crate::peers::{Peers, Verdict};
use crate::record::record_panics;

/// How the ranks talk to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backend {
    /// NCCL where this build has it and this rank has a GPU, else Gloo.
    #[default]
    Auto,
    /// Gloo: CPU tensors (CUDA tensors too, through the host).
    Gloo,
    /// NCCL: CUDA tensors.
    Nccl,
}

/// How to join a process group.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// Which library moves the data.
    pub backend: Backend,
    /// How long any collective, and the meeting of the ranks, may take before it is an error.
    ///
    /// The default is 10 minutes: rank 0 may evaluate or save meanwhile, yet nothing hangs for
    /// ever.
    pub timeout: Duration,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { backend: Backend::Auto, timeout: Duration::from_mins(10) }
    }
}

/// All ranks of a launch, able to run collectives together.
///
/// Cloning gives another handle on the same group. The group ends when the last handle, including
/// those inside a [`Ddp`](crate::Ddp), is dropped. Every collective must be called by all ranks in
/// the same order, and from one thread at a time.
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    shared: Arc<Shared>,
}

/// Fields are dropped in this order: the peers say goodbye before the group's connections close,
/// so that whoever notices the closing also finds the reason; the store goes last.
#[derive(Debug)]
struct Shared {
    peers: Peers,
    group: Mutex<ffi::Group>,
    failure: Mutex<Option<CollectiveError>>,
    rank: usize,
    local_rank: usize,
    world_size: usize,
    device: Device,
    timeout: Duration,
    _store: Arc<Store>,
}

impl ProcessGroup {
    /// Meets the other ranks of the launch. A collective: every rank must call it.
    ///
    /// # Errors
    /// The port is taken, the other ranks do not come within the timeout, or the backend cannot
    /// be had.
    #[expect(clippy::needless_pass_by_value, reason = "options may grow fields that are consumed")]
    pub fn init(launch: &Launch, options: GroupOptions) -> Result<Self> {
        let failed = |reason: String| Error::Init {
            rank: launch.rank(),
            world_size: launch.world_size(),
            reason,
        };
        record_panics();
        let device = pick_device(launch, options.backend).map_err(failed)?;
        let group = join(launch, &options, device).map_err(failed)?;
        // Connected to all is not yet: all are connected.
        group.barrier()?;
        Ok(group)
    }

    /// This rank, `0..world_size`.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// The rank among the processes on this node.
    pub fn local_rank(&self) -> usize {
        self.shared.local_rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.shared.world_size
    }

    /// Whether this is rank 0, the one that prints and saves.
    pub fn is_main(&self) -> bool {
        self.shared.rank == 0
    }

    /// This rank's device: its GPU by local rank, or the CPU.
    pub fn device(&self) -> Device {
        self.shared.device
    }

    /// How long a collective may take.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// Sums `tensor` over the ranks, in place.
    ///
    /// # Errors
    /// The tensor is not contiguous, or a rank failed.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<()> {
        self.all_reduce_op(tensor, ReduceOp::Sum)
    }

    /// Combines `tensor` over the ranks with `op`, in place.
    ///
    /// # Errors
    /// As for [`ProcessGroup::all_reduce`]; an average of integers.
    pub fn all_reduce_op(&self, tensor: &Tensor, op: ReduceOp) -> Result<()> {
        in_place_ok("all_reduce", tensor)?;
        let sum = summed("all_reduce", tensor, op)?;
        self.complete("all_reduce", |group| group.all_reduce(tensor, sum))?;
        self.divide_if_average(tensor, op)
    }

    /// Starts a sum of `tensor` over the ranks and returns at once. The tensor must be neither
    /// read nor written until the returned work has been waited for.
    ///
    /// # Errors
    /// As for [`ProcessGroup::all_reduce`].
    pub fn all_reduce_async(&self, tensor: &Tensor) -> Result<Work> {
        in_place_ok("all_reduce", tensor)?;
        self.start("all_reduce", |group| group.all_reduce(tensor, ReduceOp::Sum))
    }

    /// Copies `tensor` of rank `root` into `tensor` of every rank.
    ///
    /// # Errors
    /// There is no such rank, the tensor is not contiguous, or a rank failed.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<()> {
        self.broadcast_async(tensor, root)?.wait()
    }

    /// As [`ProcessGroup::broadcast`], returning at once.
    ///
    /// # Errors
    /// As for [`ProcessGroup::broadcast`].
    pub fn broadcast_async(&self, tensor: &Tensor, root: usize) -> Result<Work> {
        self.check_root("broadcast", root)?;
        in_place_ok("broadcast", tensor)?;
        self.start("broadcast", |group| group.broadcast(tensor, root))
    }

    /// Combines `tensor` over the ranks with `op`; only rank `root` gets the result, in place.
    /// What the tensor holds on the other ranks afterwards is unspecified.
    ///
    /// # Errors
    /// As for [`ProcessGroup::broadcast`].
    pub fn reduce(&self, tensor: &Tensor, root: usize, op: ReduceOp) -> Result<()> {
        self.check_root("reduce", root)?;
        in_place_ok("reduce", tensor)?;
        let sum = summed("reduce", tensor, op)?;
        self.complete("reduce", |group| group.reduce(tensor, root, sum))?;
        if self.rank() == root { self.divide_if_average(tensor, op) } else { Ok(()) }
    }

    /// The tensors of all ranks, in rank order. All must have the same shape and kind; see
    /// [`ProcessGroup::all_gather_ragged`] for different lengths.
    ///
    /// # Errors
    /// A rank failed, or the shapes differ.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let input = tensor.detach().contiguous();
        let outputs: Vec<Tensor> = (0..self.world_size()).map(|_| input.empty_like()).collect();
        self.complete("all_gather", |group| group.all_gather(&input, &outputs))?;
        Ok(outputs)
    }

    /// Waits until every rank is here.
    ///
    /// # Errors
    /// A rank failed or did not come within the timeout.
    pub fn barrier(&self) -> Result<()> {
        self.complete("barrier", ffi::Group::barrier)
    }

    /// A barrier whose error names every rank that did not come within `timeout`. Slower than
    /// [`ProcessGroup::barrier`]: rank 0 hears from each rank in turn.
    ///
    /// # Errors
    /// A rank failed or did not come.
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        self.usable()?;
        let inside = self.shared.peers.enter("monitored_barrier");
        let done = self.lock_group().monitored_barrier(timeout);
        drop(inside);
        done.map_err(|error| self.failed("monitored_barrier", &error))
    }

    /// The bytes of all ranks, in rank order; lengths may differ.
    pub(crate) fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.world_size() == 1 {
            return Ok(vec![bytes.to_vec()]);
        }
        let lengths = self.all_gather(&Tensor::from_slice(&[bytes.len() as i64]))?;
        let lengths: Vec<usize> = lengths.iter().map(|n| n.int64_value(&[0]) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = bytes.to_vec();
        padded.resize(longest.max(1), 0);
        let gathered = self.all_gather(&Tensor::from_slice(&padded))?;
        gathered
            .iter()
            .zip(lengths)
            .map(|(tensor, length)| {
                let mut bytes = Vec::<u8>::try_from(tensor)?;
                bytes.truncate(length);
                Ok(bytes)
            })
            .collect()
    }

    /// Lets all ranks learn whether `outcome` is an error on any of them: the first such rank and
    /// its text.
    pub(crate) fn agree(&self, outcome: Result<(), String>) -> Result<Option<(usize, String)>> {
        let text = outcome.err().unwrap_or_default();
        // One cheap number in the usual case, the texts only if one of them is not empty.
        let failures = Tensor::from_slice(&[i64::from(!text.is_empty())]);
        self.all_reduce(&failures)?;
        if failures.int64_value(&[0]) == 0 {
            return Ok(None);
        }
        let texts = self.all_gather_bytes(text.as_bytes())?;
        let first = texts.iter().position(|text| !text.is_empty()).unwrap_or(0);
        Ok(Some((first, String::from_utf8_lossy(&texts[first]).into_owned())))
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.shared.peers
    }

    pub(crate) fn lock_group(&self) -> MutexGuard<'_, ffi::Group> {
        self.shared.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to go on after a failure: c10d's group is dead then.
    pub(crate) fn usable(&self) -> Result<()> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failure {
            None => Ok(()),
            Some(error) => Err(Error::Collective(error.clone())),
        }
    }

    /// The error for a collective that libtorch reports as failed, with the rank to blame.
    pub(crate) fn failed(&self, operation: &str, error: &TorchError) -> Error {
        let Verdict { culprits, diagnosis } = self.peers().investigate(operation);
        self.poison(operation, culprits, diagnosis, error.0.clone())
    }

    /// Gives the group up because of something this rank found in itself, and lets the others know.
    pub(crate) fn give_up(&self, reason: &str) {
        self.peers().accuse_self(reason);
        let diagnosis = format!("this rank gave up before: {reason}");
        let _ = self.poison("an earlier call", vec![self.rank()], diagnosis, "-".to_owned());
    }

    fn poison(
        &self,
        operation: &str,
        culprits: Vec<usize>,
        diagnosis: String,
        message: String,
    ) -> Error {
        let error = CollectiveError {
            operation: operation.to_owned(),
            rank: self.rank(),
            step: self.peers().step(),
            culprits,
            diagnosis,
            message,
        };
        let mut failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Error::Collective(failure.get_or_insert(error).clone())
    }

    pub(crate) fn start(
        &self,
        operation: &'static str,
        start: impl FnOnce(&ffi::Group) -> TorchResult<ffi::Work>,
    ) -> Result<Work> {
        self.usable()?;
        match start(&self.lock_group()) {
            Ok(work) => Ok(Work { running: Some(work), operation, group: self.clone() }),
            Err(error) => Err(self.refused(operation, error)),
        }
    }

    pub(crate) fn complete(
        &self,
        operation: &'static str,
        start: impl FnOnce(&ffi::Group) -> TorchResult<ffi::Work>,
    ) -> Result<()> {
        self.start(operation, start)?.wait()
    }

    /// c10d checks arguments before it sends anything: such an error is this rank's own, unless it
    /// speaks of a connection.
    fn refused(&self, operation: &str, error: TorchError) -> Error {
        if is_peer_failure(&error.0) {
            return self.failed(operation, &error);
        }
        let reason = format!("{operation} was refused: {}", error.0);
        self.give_up(&reason);
        Error::Torch { what: operation.to_owned(), message: error.0 }
    }

    pub(crate) fn check_root(&self, operation: &str, root: usize) -> Result<()> {
        if root < self.world_size() {
            return Ok(());
        }
        let size = self.world_size();
        Err(Error::Argument(format!("{operation}: there is no rank {root} among {size} ranks")))
    }

    fn divide_if_average(&self, tensor: &Tensor, op: ReduceOp) -> Result<()> {
        if op == ReduceOp::Average {
            let mut tensor = tensor.detach();
            let _ = tch::no_grad(|| tensor.f_div_scalar_(self.world_size() as f64))?;
        }
        Ok(())
    }
}

/// A collective that writes its tensor needs its memory in one piece.
pub(crate) fn in_place_ok(operation: &str, tensor: &Tensor) -> Result<()> {
    if tensor.is_contiguous() {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{operation}: the tensor of shape {:?} is not contiguous, so its memory cannot be written \
         as one piece; call `.contiguous()` and use the result",
        tensor.size()
    )))
}

/// Gloo has no average: it is a sum here, divided afterwards.
fn summed(operation: &str, tensor: &Tensor, op: ReduceOp) -> Result<ReduceOp> {
    if op != ReduceOp::Average {
        return Ok(op);
    }
    if is_float(tensor.kind()) {
        return Ok(ReduceOp::Sum);
    }
    Err(Error::Argument(format!(
        "{operation}: the average of {:?} values is not one of them; convert the tensor to a \
         floating-point kind first",
        tensor.kind()
    )))
}

fn is_float(kind: Kind) -> bool {
    use Kind::{BFloat16, ComplexDouble, ComplexFloat, ComplexHalf, Double, Float, Half};
    matches!(kind, BFloat16 | ComplexDouble | ComplexFloat | ComplexHalf | Double | Float | Half)
}

/// Whether libtorch's words speak of another rank rather than of this one's arguments.
pub(crate) fn is_peer_failure(message: &str) -> bool {
    const SIGNS: [&str; 12] = [
        "connection closed",
        "connection reset",
        "connection refused",
        "broken pipe",
        "timed out",
        "timeout",
        "socket",
        "writev",
        "readv",
        "recvmsg",
        "nccl",
        "transport endpoint",
    ];
    let message = message.to_lowercase();
    SIGNS.iter().any(|sign| message.contains(sign))
}

/// A collective under way.
#[must_use = "a collective must be waited for before its tensor is used: call `.wait()`"]
#[derive(Debug)]
pub struct Work {
    running: Option<ffi::Work>,
    operation: &'static str,
    group: ProcessGroup,
}

impl Work {
    /// Waits for the collective to end; only then may its tensor be used.
    ///
    /// # Errors
    /// A rank failed.
    pub fn wait(mut self) -> Result<()> {
        let Some(work) = self.running.take() else { return Ok(()) };
        let inside = self.group.peers().enter(self.operation);
        let done = work.wait();
        drop(inside);
        done.map_err(|error| self.group.failed(self.operation, &error))
    }

    /// Whether it has ended; the result still has to be taken by [`Work::wait`].
    ///
    /// # Errors
    /// libtorch cannot say.
    pub fn is_done(&self) -> Result<bool> {
        match &self.running {
            None => Ok(true),
            Some(work) => work.is_completed().map_err(|TorchError(message)| Error::Torch {
                what: format!("asking whether {} has ended", self.operation),
                message,
            }),
        }
    }

    pub(crate) fn raw(&self) -> Option<&ffi::Work> {
        self.running.as_ref()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.running.is_some() && !std::thread::panicking() {
            eprintln!(
                "warning: rank {}: an asynchronous {} was dropped without `.wait()`; its result \
                 and its errors are lost",
                self.group.rank(),
                self.operation
            );
        }
    }
}

/// The device of this rank, made the current one.
fn pick_device(launch: &Launch, backend: Backend) -> Result<Device, String> {
    if backend == Backend::Nccl {
        return Err("this build of tch-ddp has no NCCL; use `Backend::Gloo`, or build with \
                    feature `nccl` and a CUDA libtorch"
            .to_owned());
    }
    let n_gpus = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    if backend == Backend::Gloo || n_gpus == 0 || !tch::Cuda::is_available() {
        return Ok(Device::Cpu);
    }
    if launch.local_rank() >= n_gpus {
        return Err(format!(
            "local rank {} has no GPU of its own: this node has {n_gpus}; start at most one rank \
             per GPU, or use `Backend::Gloo` for the CPU",
            launch.local_rank()
        ));
    }
    Ok(Device::Cuda(launch.local_rank()))
}

/// Groups of this process so far: each has its own corner of the store, in the same order on
/// every rank.
static N_GROUPS: AtomicU64 = AtomicU64::new(0);

fn join(launch: &Launch, options: &GroupOptions, device: Device) -> Result<ProcessGroup, String> {
    let number = N_GROUPS.fetch_add(1, Ordering::Relaxed);
    let (rank, world_size) = (launch.rank(), launch.world_size());
    let (store, restart) = match launch.meeting().filter(|_| world_size > 1) {
        None => (Arc::new(Store::local().map_err(|e| e.0)?), 0),
        Some(meeting) => (meet(launch, meeting, options.timeout)?, meeting.restart),
    };
    let prefix = format!("tch_ddp/{restart}/{number}");
    let of_group = |store: &Store, part: &str| {
        store.prefixed(&format!("{prefix}/{part}")).map_err(|error| error.0)
    };
    let connection = if world_size == 1 {
        None
    } else {
        let other = store.another_connection().map_err(|error| error.0)?;
        Some(of_group(&other, "peers")?)
    };
    let listen = listen_address(launch);
    let group_store = of_group(&store, "gloo")?;
    let group = ffi::Group::gloo(
        &group_store,
        rank,
        world_size,
        options.timeout,
        &listen,
        &format!("tch_ddp_{number}"),
    )
    .map_err(|error| not_all_came(&error, options.timeout))?;
    let host_is_launcher = launch.meeting().is_some_and(|meeting| meeting.kept_by_launcher);
    let peers_store = Arc::new(of_group(&store, "peers")?);
    let peers = Peers::new(rank, world_size, peers_store, connection, host_is_launcher);
    let shared = Shared {
        group: Mutex::new(group),
        peers,
        failure: Mutex::new(None),
        rank,
        local_rank: launch.local_rank(),
        world_size,
        device,
        timeout: options.timeout,
        _store: store,
    };
    Ok(ProcessGroup { shared: Arc::new(shared) })
}

fn not_all_came(error: &TorchError, timeout: Duration) -> String {
    format!(
        "the ranks did not all meet within {} s: {}; check that every rank was started and that \
         their machines reach each other (GLOO_SOCKET_IFNAME picks the network interface)",
        timeout.as_secs(),
        error.0
    )
}

/// A store by the host and port of its server.
type OpenStore = ((String, u16), Arc<Store>);

/// Stores stay open until the process ends: a later group meets over the same one, and a rank that
/// is done with a group early does not take the store away from the others.
static STORES: Mutex<Vec<OpenStore>> = Mutex::new(Vec::new());

fn meet(launch: &Launch, meeting: &Meeting, timeout: Duration) -> Result<Arc<Store>, String> {
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (meeting.host.clone(), meeting.port);
    if let Some((_, store)) = stores.iter().find(|(other, _)| *other == key) {
        return Ok(Arc::clone(store));
    }
    let is_server = launch.rank() == 0 && !meeting.kept_by_launcher;
    let listen_fd = if is_server { Some(listening_socket(meeting)?) } else { None };
    let (host, port) = (meeting.host.as_str(), meeting.port);
    let store = Store::tcp(host, port, is_server, listen_fd, timeout).map_err(|error| {
        let keeper = if meeting.kept_by_launcher { "the launcher" } else { "rank 0" };
        format!(
            "no store at {host}:{port}, where {keeper} should keep it: {}; check MASTER_ADDR and \
             MASTER_PORT, and that rank 0 is running",
            error.0
        )
    })?;
    let store = Arc::new(store);
    stores.push((key, Arc::clone(&store)));
    Ok(store)
}

/// Binds the store's port here, because c10d goes on without a server when the port is taken.
fn listening_socket(meeting: &Meeting) -> Result<i32, String> {
    if let Some(fd) = meeting.listen_fd {
        return Ok(fd);
    }
    let port = meeting.port;
    let listener = TcpListener::bind(("::", port))
        .or_else(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind(("0.0.0.0", port)),
        })
        .map_err(|error| {
            format!(
                "cannot listen on port {port} (MASTER_PORT): {error}; another run may be using \
                 it: choose a free port, or start with `ddp-run`, which finds one"
            )
        })?;
    Ok(listener.into_raw_fd())
}

/// The address the other ranks reach this one at.
fn listen_address(launch: &Launch) -> Listen {
    if let Ok(interface) = std::env::var("GLOO_SOCKET_IFNAME")
        && !interface.is_empty()
    {
        return Listen::Interface(interface);
    }
    let Some(meeting) = launch.meeting().filter(|_| !launch.is_one_node()) else {
        return Listen::Host("127.0.0.1".to_owned());
    };
    debug_assert!(!is_loopback(&meeting.host), "a loopback meeting is one node");
    // No packet is sent: this asks the routing table which address faces the meeting point.
    let facing = || -> std::io::Result<String> {
        let any = if meeting.host.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect((meeting.host.as_str(), meeting.port))?;
        Ok(socket.local_addr()?.ip().to_string())
    };
    facing().map_or(Listen::MachineName, Listen::Host)
}

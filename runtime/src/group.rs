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
use crate::peers::{Host, Peers, Verdict};
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
    place: Place,
    device: Device,
    /// CUDA tensors go over NCCL.
    over_nccl: bool,
    timeout: Duration,
    meeting: StoreCorner,
    n_subgroups: AtomicU64,
}

/// This rank among the others.
#[derive(Debug, Clone)]
struct Place {
    /// Within the group.
    rank: usize,
    local_rank: usize,
    local_world_size: usize,
    /// The global ranks of the group's ranks, in order.
    globals: Vec<usize>,
    /// All ranks of the launch.
    is_whole: bool,
}

/// The part of the store that belongs to a group, and how its ranks reach each other.
#[derive(Debug, Clone)]
struct StoreCorner {
    store: Arc<Store>,
    prefix: String,
    listen: Listen,
    host: Host,
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
        group.refuse_shared_gpus()?;
        Ok(group)
    }

    /// This rank, `0..world_size`.
    pub fn rank(&self) -> usize {
        self.shared.place.rank
    }

    /// The rank among the processes on this node.
    pub fn local_rank(&self) -> usize {
        self.shared.place.local_rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.shared.place.globals.len()
    }

    /// Whether this is rank 0, the one that prints and saves.
    pub fn is_main(&self) -> bool {
        self.shared.place.rank == 0
    }

    /// The number of ranks on this node.
    pub fn local_world_size(&self) -> usize {
        self.shared.place.local_world_size
    }

    /// The rank among all processes of the launch; another than [`rank`](ProcessGroup::rank) in a
    /// [`subgroup`](ProcessGroup::subgroup).
    pub fn global_rank(&self) -> usize {
        self.shared.place.globals[self.shared.place.rank]
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
        if self.shared.over_nccl {
            // Of the CPU's, so that it also waits for ranks whose GPU has nothing to do.
            let nothing = Tensor::from_slice(&[0u8]);
            return self.complete("barrier", |group| group.all_reduce(&nothing, ReduceOp::Sum));
        }
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

    /// A group of some of this group's ranks, in the order given. A collective: all ranks of this
    /// group call it with the same list; those not in it get `None`.
    ///
    /// # Errors
    /// On all ranks alike: the list is empty, names a rank twice or one that is not there, or
    /// differs between ranks. A rank failed.
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Option<Self>> {
        let text = format!("{ranks:?}");
        let lists = self.all_gather_bytes(text.as_bytes())?;
        if let Some(rank) = lists.iter().position(|list| *list != lists[0]) {
            return Err(Error::Disagreement(format!(
                "subgroup of {} on rank 0 but of {} on rank {rank}; call it with the same list \
                 everywhere",
                String::from_utf8_lossy(&lists[0]),
                String::from_utf8_lossy(&lists[rank])
            )));
        }
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if ranks.is_empty()
            || sorted.len() != ranks.len()
            || sorted.last() >= Some(&self.world_size())
        {
            return Err(Error::Argument(format!(
                "subgroup of {ranks:?}: give at least one of the ranks 0..{}, each once",
                self.world_size()
            )));
        }
        let number = self.shared.n_subgroups.fetch_add(1, Ordering::Relaxed);
        self.part_of_group(ranks, &format!("sub{number}"))
    }

    /// Splits the group into groups of the ranks that give the same `color`, each in the order of
    /// their ranks. A collective.
    ///
    /// # Errors
    /// A rank failed.
    pub fn split(&self, color: usize) -> Result<Self> {
        let colors = self.all_gather(&Tensor::from_slice(&[color as i64]))?;
        let same = |rank: &usize| colors[*rank].int64_value(&[0]) == color as i64;
        let ranks: Vec<usize> = (0..self.world_size()).filter(same).collect();
        let number = self.shared.n_subgroups.fetch_add(1, Ordering::Relaxed);
        let part = self.part_of_group(&ranks, &format!("split{number}/{color}"))?;
        part.ok_or_else(|| Error::Argument("a rank is always in its own part".to_owned()))
    }

    fn part_of_group(&self, ranks: &[usize], name: &str) -> Result<Option<Self>> {
        let Shared { place, meeting, device, over_nccl, timeout, .. } = &*self.shared;
        let Some(rank) = ranks.iter().position(|rank| *rank == place.rank) else { return Ok(None) };
        let globals: Vec<usize> = ranks.iter().map(|rank| place.globals[*rank]).collect();
        let world_size = globals.len();
        let place = Place { rank, globals, is_whole: false, ..place.clone() };
        let prefix = format!("{}/{name}", meeting.prefix);
        let corner = StoreCorner { prefix, ..meeting.clone() };
        let group = connect(place, corner, (*device, *over_nccl), *timeout)
            .map_err(|reason| Error::Init { rank, world_size, reason })?;
        group.barrier()?;
        Ok(Some(group))
    }

    /// The sum of `tensor` over the ranks, as a new tensor through which gradients flow: the
    /// gradient of the input is the sum of the ranks' gradients of the output. Its backward pass is
    /// a collective too.
    ///
    /// # Errors
    /// A rank failed.
    pub fn all_reduce_differentiable(&self, tensor: &Tensor) -> Result<Tensor> {
        self.differentiable("all_reduce", |group| group.all_reduce_differentiable(tensor))
    }

    /// The tensors of all ranks, which must have the same shape, stacked on a new first dimension;
    /// gradients flow back to the rank each came from. Its backward pass is a collective too.
    ///
    /// # Errors
    /// A rank failed.
    pub fn all_gather_differentiable(&self, tensor: &Tensor) -> Result<Tensor> {
        self.differentiable("all_gather", |group| group.all_gather_differentiable(tensor))
    }

    fn differentiable(
        &self,
        operation: &'static str,
        call: impl FnOnce(&ffi::Group) -> TorchResult<Tensor>,
    ) -> Result<Tensor> {
        self.usable()?;
        let inside = self.shared.peers.enter(operation);
        let result = call(&self.lock_group());
        drop(inside);
        result.map_err(|error| self.refused(operation, error))
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
        let culprits = vec![self.global_rank()];
        let _ = self.poison("an earlier call", culprits, diagnosis, "-".to_owned());
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
            rank: self.global_rank(),
            step: self.peers().step(),
            culprits,
            diagnosis,
            message,
        };
        self.lock_group().set_failed();
        let mut failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Error::Collective(failure.get_or_insert(error).clone())
    }

    /// NCCL cannot work with two ranks on one GPU, and says so obscurely.
    fn refuse_shared_gpus(&self) -> Result<()> {
        let (true, Device::Cuda(index)) = (self.shared.over_nccl, self.device()) else {
            return Ok(());
        };
        let uuid = ffi::cuda_uuid(index).map_err(|TorchError(message)| Error::Torch {
            what: "identifying the GPU".to_owned(),
            message,
        })?;
        let all = self.all_gather_bytes(&uuid)?;
        let twice = (0..all.len()).find_map(|rank| {
            let first = all.iter().position(|other| *other == all[rank])?;
            (first < rank).then_some((first, rank))
        });
        let Some((first, second)) = twice else { return Ok(()) };
        let reason = format!(
            "ranks {first} and {second} are on the same GPU, which NCCL cannot do; start one rank \
             per GPU and let each take the GPU of its local rank, or use `Backend::Gloo`"
        );
        Err(Error::Init { rank: self.rank(), world_size: self.world_size(), reason })
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

    /// Gives the work to c10d, which waits for it.
    pub(crate) fn into_raw(mut self) -> Option<ffi::Work> {
        self.running.take()
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

/// The device of this rank, made the current one, and whether its tensors go over NCCL.
fn pick_device(launch: &Launch, backend: Backend) -> Result<(Device, bool), String> {
    let has_nccl = cfg!(feature = "nccl");
    if backend == Backend::Nccl && !has_nccl {
        return Err("this build of tch-ddp has no NCCL; use `Backend::Gloo`, or build with \
                    feature `nccl` and a CUDA libtorch"
            .to_owned());
    }
    let n_gpus = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    let has_gpus = n_gpus > 0 && tch::Cuda::is_available();
    if backend == Backend::Nccl && !has_gpus {
        return Err("NCCL needs a GPU, and this node has none that libtorch can use; use \
                    `Backend::Gloo` for the CPU"
            .to_owned());
    }
    if backend == Backend::Gloo || !has_gpus {
        return Ok((Device::Cpu, false));
    }
    let index = launch.local_rank();
    if index >= n_gpus {
        return Err(format!(
            "local rank {index} has no GPU of its own: this node has {n_gpus}; start at most one \
             rank per GPU, or use `Backend::Gloo` for the CPU"
        ));
    }
    ffi::cuda_set_device(index).map_err(|error| format!("GPU {index}: {}", error.0))?;
    Ok((Device::Cuda(index), has_nccl))
}

/// Groups of this process so far: each has its own corner of the store, in the same order on
/// every rank.
static N_GROUPS: AtomicU64 = AtomicU64::new(0);

fn join(
    launch: &Launch,
    options: &GroupOptions,
    device: (Device, bool),
) -> Result<ProcessGroup, String> {
    let number = N_GROUPS.fetch_add(1, Ordering::Relaxed);
    let world_size = launch.world_size();
    let meeting = launch.meeting().filter(|_| world_size > 1);
    let store = match meeting {
        None => Arc::new(Store::local().map_err(|e| e.0)?),
        Some(meeting) => meet(launch, meeting, options.timeout)?,
    };
    let restart = meeting.map_or(0, |meeting| meeting.restart);
    let host = match meeting {
        Some(meeting) if meeting.kept_by_launcher => Host::Launcher,
        _ => Host::Rank(0),
    };
    let prefix = format!("tch_ddp/{restart}/{number}");
    let corner = StoreCorner { store, prefix, listen: listen_address(launch), host };
    let place = Place {
        rank: launch.rank(),
        local_rank: launch.local_rank(),
        local_world_size: launch.local_world_size(),
        globals: (0..world_size).collect(),
        is_whole: true,
    };
    connect(place, corner, device, options.timeout)
}

/// Connects the ranks that share a corner of the store.
fn connect(
    place: Place,
    meeting: StoreCorner,
    (device, over_nccl): (Device, bool),
    timeout: Duration,
) -> Result<ProcessGroup, String> {
    let nccl_device = match device {
        Device::Cuda(index) if over_nccl => Some(index),
        _ => None,
    };
    let (rank, world_size) = (place.rank, place.globals.len());
    let StoreCorner { store, prefix, listen, host } = &meeting;
    let part = |store: &Store, part: &str| {
        store.prefixed(&format!("{prefix}/{part}")).map_err(|error| error.0)
    };
    let connection = if world_size == 1 {
        None
    } else {
        let other = store.another_connection().map_err(|error| error.0)?;
        Some(part(&other, "peers")?)
    };
    let group_store = part(store, "gloo")?;
    let places = (rank, world_size);
    let group = ffi::Group::new(&group_store, places, timeout, listen, prefix, nccl_device)
        .map_err(|error| not_all_came(&error, timeout))?;
    let peers_store = Arc::new(part(store, "peers")?);
    let (globals, is_whole) = (place.globals.clone(), place.is_whole);
    let peers = Peers::new(rank, globals, is_whole, peers_store, connection, *host);
    let shared = Shared {
        peers,
        group: Mutex::new(group),
        failure: Mutex::new(None),
        place,
        device,
        over_nccl,
        timeout,
        meeting,
        n_subgroups: AtomicU64::new(0),
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

//! The only unsafe code: Rust owners of the shim's objects, and safe calls on them. Everything
//! that can fail returns [`TorchError`], libtorch's words; callers add what, where and what to do.
//! No decision is taken here.

#![expect(unsafe_code, reason = "this module is the boundary to the C++ shim")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null, null_mut};
use std::time::Duration;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::optim::{AdamWConfig, SgdConfig};

/// libtorch's own error text, first paragraph.
#[derive(Debug, Clone)]
pub(crate) struct TorchError(pub(crate) String);

pub(crate) type TorchResult<T> = Result<T, TorchError>;

#[repr(C)]
struct RawError(c_void);
#[repr(C)]
struct RawBytes(c_void);
#[repr(C)]
struct RawStore(c_void);
#[repr(C)]
struct RawGroup(c_void);
#[repr(C)]
struct RawWork(c_void);
#[repr(C)]
struct RawWatch(c_void);
#[repr(C)]
struct RawMirror(c_void);
#[repr(C)]
struct RawReducer(c_void);

type RawTensor = *mut C_tensor;

#[repr(C)]
struct RawReducerOptions {
    params: *const RawTensor,
    names: *const *const c_char,
    expect_sparse: *const bool,
    n_params: usize,
    initial_bucket_limits: *const usize,
    n_initial_bucket_limits: usize,
    bucket_bytes_max: i64,
    first_bucket_bytes_max: i64,
    find_unused_parameters: bool,
    gradient_as_bucket_view: bool,
    static_graph: bool,
    sync_buffers: bool,
}

#[repr(C)]
struct RawStarted {
    result: RawTensor,
    work: *mut RawWork,
    continuation: *mut c_void,
}

#[repr(C)]
struct RawHook {
    context: *mut c_void,
    start: extern "C" fn(*mut c_void, RawTensor, usize, bool, *mut RawStarted) -> *mut RawError,
    finish: extern "C" fn(*mut c_void, *mut RawTensor) -> *mut RawError,
    drop_continuation: extern "C" fn(*mut c_void),
    drop_context: extern "C" fn(*mut c_void),
}

#[repr(C)]
struct RawSgd {
    lr: f64,
    momentum: f64,
    dampening: f64,
    weight_decay: f64,
    nesterov: bool,
    is_first_step: bool,
}

#[repr(C)]
struct RawAdamW {
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
}

unsafe extern "C" {
    fn ddp_keep_freed_memory(bytes_max: c_int, piece_bytes_max: c_int);
    fn ddp_error_message(error: *const RawError) -> *const c_char;
    fn ddp_error_free(error: *mut RawError);
    fn ddp_bytes_data(bytes: *const RawBytes) -> *const u8;
    fn ddp_bytes_len(bytes: *const RawBytes) -> usize;
    fn ddp_bytes_free(bytes: *mut RawBytes);
    fn ddp_store_tcp(
        host: *const c_char,
        port: u16,
        is_server: bool,
        listen_fd: c_int,
        timeout_ms: i64,
        out: *mut *mut RawStore,
    ) -> *mut RawError;
    fn ddp_store_local(out: *mut *mut RawStore) -> *mut RawError;
    fn ddp_store_prefixed(
        store: *const RawStore,
        prefix: *const c_char,
        out: *mut *mut RawStore,
    ) -> *mut RawError;
    fn ddp_store_clone(store: *const RawStore, out: *mut *mut RawStore) -> *mut RawError;
    fn ddp_store_free(store: *mut RawStore);
    fn ddp_store_set(
        store: *const RawStore,
        key: *const c_char,
        data: *const u8,
        len: usize,
    ) -> *mut RawError;
    fn ddp_store_get(
        store: *const RawStore,
        key: *const c_char,
        out: *mut *mut RawBytes,
    ) -> *mut RawError;
    fn ddp_store_compare_set(
        store: *const RawStore,
        key: *const c_char,
        expected: *const c_char,
        desired: *const c_char,
        out: *mut *mut RawBytes,
    ) -> *mut RawError;
    fn ddp_store_check(store: *const RawStore, key: *const c_char, out: *mut bool)
    -> *mut RawError;
    fn ddp_store_wait(store: *const RawStore, key: *const c_char, timeout_ms: i64)
    -> *mut RawError;
    fn ddp_group_gloo(
        store: *const RawStore,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        host: *const c_char,
        interface: *const c_char,
        name: *const c_char,
        out: *mut *mut RawGroup,
    ) -> *mut RawError;
    fn ddp_group_nccl(
        store: *const RawStore,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        host: *const c_char,
        interface: *const c_char,
        name: *const c_char,
        device: i64,
        out: *mut *mut RawGroup,
    ) -> *mut RawError;
    fn ddp_cuda_uuid(device: i64, out: *mut *mut RawBytes) -> *mut RawError;
    fn ddp_group_free(group: *mut RawGroup, failed: bool);
    fn ddp_group_broadcast(
        group: *const RawGroup,
        tensor: RawTensor,
        root: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_all_reduce(
        group: *const RawGroup,
        tensor: RawTensor,
        op: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_reduce(
        group: *const RawGroup,
        tensor: RawTensor,
        root: c_int,
        op: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_all_gather(
        group: *const RawGroup,
        input: RawTensor,
        outputs: *const RawTensor,
        n_outputs: usize,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_gather(
        group: *const RawGroup,
        input: RawTensor,
        outputs: *const RawTensor,
        n_outputs: usize,
        root: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_scatter(
        group: *const RawGroup,
        output: RawTensor,
        inputs: *const RawTensor,
        n_inputs: usize,
        root: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_reduce_scatter(
        group: *const RawGroup,
        output: RawTensor,
        inputs: *const RawTensor,
        n_inputs: usize,
        op: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_send(
        group: *const RawGroup,
        tensor: RawTensor,
        to: c_int,
        tag: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_recv(
        group: *const RawGroup,
        tensor: RawTensor,
        from: c_int,
        tag: c_int,
        out: *mut *mut RawWork,
    ) -> *mut RawError;
    fn ddp_group_barrier(group: *const RawGroup, out: *mut *mut RawWork) -> *mut RawError;
    fn ddp_group_monitored_barrier(
        group: *const RawGroup,
        timeout_ms: i64,
        wait_all: bool,
    ) -> *mut RawError;
    fn ddp_work_wait(work: *const RawWork) -> *mut RawError;
    fn ddp_work_is_completed(work: *const RawWork, out: *mut bool) -> *mut RawError;
    fn ddp_work_free(work: *mut RawWork);
    fn ddp_broadcast_coalesced(
        group: *const RawGroup,
        tensors: *const RawTensor,
        n_tensors: usize,
        bytes_max: usize,
        root: c_int,
    ) -> *mut RawError;
    fn ddp_verify_params(
        group: *const RawGroup,
        tensors: *const RawTensor,
        n_tensors: usize,
    ) -> *mut RawError;
    fn ddp_watch_new(
        params: *const RawTensor,
        n_params: usize,
        out: *mut *mut RawWatch,
    ) -> *mut RawError;
    fn ddp_watch_free(watch: *mut RawWatch);
    fn ddp_watch_total(watch: *const RawWatch) -> u64;
    fn ddp_watch_take_counts(watch: *const RawWatch, counts: *mut u32);
    fn ddp_watch_changed(
        watch: *const RawWatch,
        index: *mut i64,
        what: *mut *const c_char,
    ) -> *mut RawError;
    fn ddp_mirror_new(
        source: *const RawTensor,
        replicas: *const RawTensor,
        n_params: usize,
        n_replicas: usize,
        out: *mut *mut RawMirror,
    ) -> *mut RawError;
    fn ddp_mirror_free(mirror: *mut RawMirror);
    fn ddp_reducer_new(
        group: *const RawGroup,
        options: *const RawReducerOptions,
        out: *mut *mut RawReducer,
    ) -> *mut RawError;
    fn ddp_reducer_free(reducer: *mut RawReducer);
    fn ddp_reducer_before_forward(reducer: *const RawReducer) -> *mut RawError;
    fn ddp_reducer_prepare_for_backward(
        reducer: *const RawReducer,
        outputs: *const RawTensor,
        n_outputs: usize,
    ) -> *mut RawError;
    fn ddp_reducer_check_finalized(reducer: *const RawReducer) -> *mut RawError;
    fn ddp_reducer_delay_all_reduce_in(
        reducer: *const RawReducer,
        loss: RawTensor,
    ) -> *mut RawError;
    fn ddp_reducer_set_work_handle(
        reducer: *const RawReducer,
        work: *const RawWork,
        use_static_world_size: bool,
    ) -> *mut RawError;
    fn ddp_reducer_logging_data(
        reducer: *const RawReducer,
        out: *mut *mut RawBytes,
    ) -> *mut RawError;
    fn ddp_error_new(text: *const u8, len: usize) -> *mut RawError;
    fn ddp_reducer_register_hook(reducer: *const RawReducer, hook: RawHook) -> *mut RawError;
    fn ddp_reducer_stand_in(
        reducer: *const RawReducer,
        group: *const RawGroup,
        find_unused: bool,
    ) -> *mut RawError;
    fn ddp_reducer_used_map(reducer: *const RawReducer, out: *mut RawTensor) -> *mut RawError;
    fn ddp_group_all_reduce_differentiable(
        group: *const RawGroup,
        tensor: RawTensor,
        out: *mut RawTensor,
    ) -> *mut RawError;
    fn ddp_group_all_gather_differentiable(
        group: *const RawGroup,
        tensor: RawTensor,
        out: *mut RawTensor,
    ) -> *mut RawError;
    fn ddp_fused_sgd(
        params: *const RawTensor,
        momentum_buffers: *const RawTensor,
        n: usize,
        config: *const RawSgd,
    ) -> *mut RawError;
    fn ddp_fused_adamw(
        params: *const RawTensor,
        averages: *const RawTensor,
        squares: *const RawTensor,
        steps: *const RawTensor,
        n: usize,
        config: *const RawAdamW,
    ) -> *mut RawError;
    fn ddp_random_state(out: *mut RawTensor) -> *mut RawError;
    fn ddp_set_random_state(state: RawTensor) -> *mut RawError;
    fn ddp_cuda_set_device(index: i64) -> *mut RawError;
    fn ddp_cuda_free_bytes(index: i64, out: *mut u64) -> *mut RawError;
    fn ddp_unwatched_leaf(loss: RawTensor, out: *mut RawTensor) -> *mut RawError;
    fn ddp_tensor_identity(tensor: RawTensor) -> usize;
    fn ddp_tensor_rebind(tensor: RawTensor, to: RawTensor);
    fn ddp_clear_grads(tensors: *const RawTensor, n_tensors: usize) -> *mut RawError;
    fn ddp_backward(loss: RawTensor) -> *mut RawError;
    fn ddp_randperm(n: i64, seed: u64, out: *mut RawTensor) -> *mut RawError;
}

/// Takes an error object of the shim, if there is one.
fn check(error: *mut RawError) -> TorchResult<()> {
    let Some(error) = NonNull::new(error) else { return Ok(()) };
    // SAFETY: a non-null error is owned by us, its message lives until it is freed, once, here.
    let message = unsafe {
        let message = CStr::from_ptr(ddp_error_message(error.as_ptr()));
        let message = message.to_string_lossy().into_owned();
        ddp_error_free(error.as_ptr());
        message
    };
    Err(TorchError(tidy(&message)))
}

/// Drops the C++ stack trace and source places, which help nobody who uses this crate.
fn tidy(message: &str) -> String {
    let first = message.split("\nException raised from").next().unwrap_or(message);
    let first = first.split("\nC++ CapturedTraceback").next().unwrap_or(first).trim();
    let first = match (first.strip_prefix('['), first.find("] ")) {
        // Gloo and the store begin with the path of their source file.
        (Some(inside), Some(end)) if inside[..end - 1].contains(".cc:") => &first[end + 2..],
        (Some(inside), Some(end)) if inside[..end - 1].contains(".cpp:") => &first[end + 2..],
        _ => first,
    };
    first.trim().to_owned()
}

/// Calls a constructor of the shim and takes its object.
fn made<T>(make: impl FnOnce(*mut *mut T) -> *mut RawError) -> TorchResult<NonNull<T>> {
    let mut out = null_mut();
    check(make(&raw mut out))?;
    NonNull::new(out).ok_or_else(|| TorchError("the shim made no object".to_owned()))
}

fn c_string(text: &str) -> TorchResult<CString> {
    CString::new(text).map_err(|_| TorchError(format!("`{text}` contains a NUL byte")))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).clamp(1, i64::from(i32::MAX))
}

fn raw(tensor: &Tensor) -> RawTensor {
    tensor.as_ptr().cast_mut()
}

fn raws<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<RawTensor> {
    tensors.into_iter().map(raw).collect()
}

/// Calls a function of the shim that makes a tensor; `None` where it made none.
fn made_tensor(make: impl FnOnce(*mut RawTensor) -> *mut RawError) -> TorchResult<Option<Tensor>> {
    let mut out: RawTensor = null_mut();
    check(make(&raw mut out))?;
    if out.is_null() {
        return Ok(None);
    }
    // SAFETY: the tensor is new, and nobody else holds this pointer.
    Ok(Some(unsafe { Tensor::from_ptr(out) }))
}

fn some_tensor(make: impl FnOnce(*mut RawTensor) -> *mut RawError) -> TorchResult<Tensor> {
    made_tensor(make)?.ok_or_else(|| TorchError("the shim made no tensor".to_owned()))
}

/// Gives a tensor handle away to the shim.
fn into_raw(tensor: Tensor) -> RawTensor {
    let pointer = raw(&tensor);
    std::mem::forget(tensor);
    pointer
}

fn bytes(make: impl FnOnce(*mut *mut RawBytes) -> *mut RawError) -> TorchResult<Vec<u8>> {
    let out = made(make)?;
    // SAFETY: the object is ours; its data is valid for its length until it is freed, once, here.
    unsafe {
        let len = ddp_bytes_len(out.as_ptr());
        let data = if len == 0 {
            Vec::new()
        } else {
            std::slice::from_raw_parts(ddp_bytes_data(out.as_ptr()), len).to_vec()
        };
        ddp_bytes_free(out.as_ptr());
        Ok(data)
    }
}

/// A key-value store shared by the ranks.
#[derive(Debug)]
pub(crate) struct Store(NonNull<RawStore>);

// SAFETY: c10d's stores may be used from any thread; TCPStore and HashStore lock internally.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { ddp_store_free(self.0.as_ptr()) }
    }
}

impl Store {
    pub(crate) fn tcp(
        host: &str,
        port: u16,
        is_server: bool,
        listen_fd: Option<i32>,
        timeout: Duration,
    ) -> TorchResult<Self> {
        let host = c_string(host)?;
        let fd = listen_fd.unwrap_or(-1);
        // SAFETY: the string outlives the call; `out` is written on success.
        made(|out| unsafe {
            ddp_store_tcp(host.as_ptr(), port, is_server, fd, millis(timeout), out)
        })
        .map(Self)
    }

    /// A store inside this process, for a world of one.
    pub(crate) fn local() -> TorchResult<Self> {
        // SAFETY: `out` is written on success.
        made(|out| unsafe { ddp_store_local(out) }).map(Self)
    }

    pub(crate) fn prefixed(&self, prefix: &str) -> TorchResult<Self> {
        let prefix = c_string(prefix)?;
        // SAFETY: pointers outlive the call; the new store keeps its own reference.
        made(|out| unsafe { ddp_store_prefixed(self.0.as_ptr(), prefix.as_ptr(), out) }).map(Self)
    }

    /// The same store over a connection of its own, so that a blocking wait blocks nobody else.
    pub(crate) fn another_connection(&self) -> TorchResult<Self> {
        // SAFETY: as above.
        made(|out| unsafe { ddp_store_clone(self.0.as_ptr(), out) }).map(Self)
    }

    pub(crate) fn set(&self, key: &str, value: &[u8]) -> TorchResult<()> {
        let key = c_string(key)?;
        // SAFETY: `value` is valid for its length during the call.
        check(unsafe { ddp_store_set(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// Waits for the key (the store's own timeout) and returns its value.
    pub(crate) fn get(&self, key: &str) -> TorchResult<Vec<u8>> {
        let key = c_string(key)?;
        // SAFETY: pointers outlive the call.
        bytes(|out| unsafe { ddp_store_get(self.0.as_ptr(), key.as_ptr(), out) })
    }

    /// Sets the key if its value is `expected` (empty: if it is not set); returns what is there.
    pub(crate) fn compare_set(&self, key: &str, expected: &str, new: &str) -> TorchResult<String> {
        let (key, expected, new) = (c_string(key)?, c_string(expected)?, c_string(new)?);
        // SAFETY: pointers outlive the call.
        let value = bytes(|out| unsafe {
            let (key, expected, new) = (key.as_ptr(), expected.as_ptr(), new.as_ptr());
            ddp_store_compare_set(self.0.as_ptr(), key, expected, new, out)
        })?;
        Ok(String::from_utf8_lossy(&value).into_owned())
    }

    pub(crate) fn check(&self, key: &str) -> TorchResult<bool> {
        let key = c_string(key)?;
        let mut found = false;
        // SAFETY: pointers outlive the call.
        check(unsafe { ddp_store_check(self.0.as_ptr(), key.as_ptr(), &raw mut found) })?;
        Ok(found)
    }

    pub(crate) fn wait(&self, key: &str, timeout: Duration) -> TorchResult<()> {
        let key = c_string(key)?;
        // SAFETY: pointers outlive the call.
        check(unsafe { ddp_store_wait(self.0.as_ptr(), key.as_ptr(), millis(timeout)) })
    }
}

/// How a reduction combines the ranks' values; the numbers are c10d's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum over the ranks.
    #[default]
    Sum = 0,
    /// The sum divided by the world size (NCCL only).
    Average = 1,
    /// The product.
    Product = 2,
    /// The smallest value.
    Min = 3,
    /// The largest value.
    Max = 4,
}

/// A process group with its backend.
#[derive(Debug)]
pub(crate) struct Group {
    raw: NonNull<RawGroup>,
    /// A collective failed: work may be left that never ends.
    failed: bool,
}

// SAFETY: c10d's groups have no thread affinity; the owner serialises calls.
unsafe impl Send for Group {}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { ddp_group_free(self.raw.as_ptr(), self.failed) }
    }
}

/// Which network address gloo listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    Host(String),
    Interface(String),
    MachineName,
}

impl Group {
    /// Over Gloo; with a GPU's number, over NCCL for CUDA tensors.
    pub(crate) fn new(
        store: &Store,
        (rank, size): (usize, usize),
        timeout: Duration,
        listen: &Listen,
        name: &str,
        nccl_device: Option<usize>,
    ) -> TorchResult<Self> {
        let (host, interface) = match listen {
            Listen::Host(host) => (Some(c_string(host)?), None),
            Listen::Interface(interface) => (None, Some(c_string(interface)?)),
            Listen::MachineName => (None, None),
        };
        let host = host.as_ref().map_or(null(), |text| text.as_ptr());
        let interface = interface.as_ref().map_or(null(), |text| text.as_ptr());
        let name = c_string(name)?;
        let (store, name) = (store.0.as_ptr(), name.as_ptr());
        let (rank, size, timeout) = (rank as c_int, size as c_int, millis(timeout));
        // SAFETY: pointers outlive the call; the group keeps its own reference to the store.
        let raw = made(|out| unsafe {
            match nccl_device {
                None => ddp_group_gloo(store, rank, size, timeout, host, interface, name, out),
                Some(device) => {
                    let device = device as i64;
                    ddp_group_nccl(store, rank, size, timeout, host, interface, name, device, out)
                }
            }
        })?;
        Ok(Self { raw, failed: false })
    }

    /// Notes that work may be left that never ends.
    pub(crate) fn set_failed(&mut self) {
        self.failed = true;
    }

    pub(crate) fn broadcast(&self, tensor: &Tensor, root: usize) -> TorchResult<Work> {
        // SAFETY: the work keeps its own references to tensors and group; so below.
        made(|out| unsafe {
            ddp_group_broadcast(self.raw.as_ptr(), raw(tensor), root as c_int, out)
        })
        .map(Work)
    }

    pub(crate) fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> TorchResult<Work> {
        // SAFETY: as for `broadcast`.
        made(|out| unsafe {
            ddp_group_all_reduce(self.raw.as_ptr(), raw(tensor), op as c_int, out)
        })
        .map(Work)
    }

    pub(crate) fn reduce(&self, tensor: &Tensor, root: usize, op: ReduceOp) -> TorchResult<Work> {
        // SAFETY: as for `broadcast`.
        made(|out| unsafe {
            ddp_group_reduce(self.raw.as_ptr(), raw(tensor), root as c_int, op as c_int, out)
        })
        .map(Work)
    }

    pub(crate) fn all_gather(&self, input: &Tensor, outputs: &[Tensor]) -> TorchResult<Work> {
        let outputs = raws(outputs);
        // SAFETY: as for `broadcast`.
        made(|out| unsafe {
            let (data, n) = (outputs.as_ptr(), outputs.len());
            ddp_group_all_gather(self.raw.as_ptr(), raw(input), data, n, out)
        })
        .map(Work)
    }

    /// `outputs` is empty except on the root.
    pub(crate) fn gather(
        &self,
        input: &Tensor,
        outputs: &[Tensor],
        root: usize,
    ) -> TorchResult<Work> {
        let outputs = raws(outputs);
        // SAFETY: as for `broadcast`.
        made(|out| unsafe {
            let (data, n) = (outputs.as_ptr(), outputs.len());
            ddp_group_gather(self.raw.as_ptr(), raw(input), data, n, root as c_int, out)
        })
        .map(Work)
    }

    /// `inputs` is empty except on the root.
    pub(crate) fn scatter(
        &self,
        output: &Tensor,
        inputs: &[Tensor],
        root: usize,
    ) -> TorchResult<Work> {
        let inputs = raws(inputs);
        // SAFETY: as for `broadcast`.
        made(|out| unsafe {
            let (data, n) = (inputs.as_ptr(), inputs.len());
            ddp_group_scatter(self.raw.as_ptr(), raw(output), data, n, root as c_int, out)
        })
        .map(Work)
    }

    pub(crate) fn reduce_scatter(
        &self,
        output: &Tensor,
        inputs: &[Tensor],
        op: ReduceOp,
    ) -> TorchResult<Work> {
        let inputs = raws(inputs);
        // SAFETY: as for `broadcast`.
        made(|out| unsafe {
            let (data, n) = (inputs.as_ptr(), inputs.len());
            ddp_group_reduce_scatter(self.raw.as_ptr(), raw(output), data, n, op as c_int, out)
        })
        .map(Work)
    }

    pub(crate) fn send(&self, tensor: &Tensor, to: usize, tag: i32) -> TorchResult<Work> {
        // SAFETY: as for `broadcast`.
        made(|out| unsafe { ddp_group_send(self.raw.as_ptr(), raw(tensor), to as c_int, tag, out) })
            .map(Work)
    }

    pub(crate) fn recv(&self, tensor: &Tensor, from: usize, tag: i32) -> TorchResult<Work> {
        // SAFETY: as for `broadcast`.
        made(|out| unsafe {
            ddp_group_recv(self.raw.as_ptr(), raw(tensor), from as c_int, tag, out)
        })
        .map(Work)
    }

    pub(crate) fn barrier(&self) -> TorchResult<Work> {
        // SAFETY: as for `broadcast`.
        made(|out| unsafe { ddp_group_barrier(self.raw.as_ptr(), out) }).map(Work)
    }

    pub(crate) fn monitored_barrier(&self, timeout: Duration) -> TorchResult<()> {
        // SAFETY: the group is alive during the call.
        check(unsafe { ddp_group_monitored_barrier(self.raw.as_ptr(), millis(timeout), true) })
    }

    pub(crate) fn broadcast_coalesced(
        &self,
        tensors: &[Tensor],
        bytes_max: usize,
        root: usize,
    ) -> TorchResult<()> {
        let tensors = raws(tensors);
        // SAFETY: the tensors outlive the call.
        check(unsafe {
            let (data, n) = (tensors.as_ptr(), tensors.len());
            ddp_broadcast_coalesced(self.raw.as_ptr(), data, n, bytes_max, root as c_int)
        })
    }

    pub(crate) fn all_reduce_differentiable(&self, tensor: &Tensor) -> TorchResult<Tensor> {
        // SAFETY: a live tensor; `out` receives a new one. The graph keeps the group alive.
        some_tensor(|out| unsafe {
            ddp_group_all_reduce_differentiable(self.raw.as_ptr(), raw(tensor), out)
        })
    }

    pub(crate) fn all_gather_differentiable(&self, tensor: &Tensor) -> TorchResult<Tensor> {
        // SAFETY: as above.
        some_tensor(|out| unsafe {
            ddp_group_all_gather_differentiable(self.raw.as_ptr(), raw(tensor), out)
        })
    }

    pub(crate) fn verify_params(&self, tensors: &[Tensor]) -> TorchResult<()> {
        let tensors = raws(tensors);
        // SAFETY: the tensors outlive the call.
        check(unsafe { ddp_verify_params(self.raw.as_ptr(), tensors.as_ptr(), tensors.len()) })
    }
}

/// A collective under way.
#[derive(Debug)]
pub(crate) struct Work(NonNull<RawWork>);

// SAFETY: c10d's Work locks internally and has no thread affinity.
unsafe impl Send for Work {}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: owned, freed once; c10d keeps a running operation alive by itself.
        unsafe { ddp_work_free(self.0.as_ptr()) }
    }
}

impl Work {
    pub(crate) fn wait(&self) -> TorchResult<()> {
        // SAFETY: alive during the call.
        check(unsafe { ddp_work_wait(self.0.as_ptr()) })
    }

    pub(crate) fn is_completed(&self) -> TorchResult<bool> {
        let mut done = false;
        // SAFETY: alive during the call.
        check(unsafe { ddp_work_is_completed(self.0.as_ptr(), &raw mut done) })?;
        Ok(done)
    }
}

/// Counts gradient accumulations per parameter and notices changed parameters.
#[derive(Debug)]
pub(crate) struct Watch {
    raw: NonNull<RawWatch>,
    n_params: usize,
}

// SAFETY: the counters are atomic; the tensors inside are only read by their owner.
unsafe impl Send for Watch {}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { ddp_watch_free(self.raw.as_ptr()) }
    }
}

impl Watch {
    pub(crate) fn new(params: &[Tensor]) -> TorchResult<Self> {
        let tensors = raws(params);
        // SAFETY: the watch keeps its own references to the tensors.
        let raw = made(|out| unsafe { ddp_watch_new(tensors.as_ptr(), tensors.len(), out) })?;
        Ok(Self { raw, n_params: params.len() })
    }

    /// All accumulations ever.
    pub(crate) fn total(&self) -> u64 {
        // SAFETY: alive during the call.
        unsafe { ddp_watch_total(self.raw.as_ptr()) }
    }

    /// Accumulations per parameter since the last call.
    pub(crate) fn take_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.n_params];
        // SAFETY: `counts` has room for one number per parameter.
        unsafe { ddp_watch_take_counts(self.raw.as_ptr(), counts.as_mut_ptr()) }
        counts
    }

    /// The first parameter that is no longer what it was, and what changed.
    pub(crate) fn changed(&self) -> TorchResult<Option<(usize, String)>> {
        let (mut index, mut what) = (-1, null());
        // SAFETY: pointers outlive the call; `what` points to a static text when index is set.
        check(unsafe { ddp_watch_changed(self.raw.as_ptr(), &raw mut index, &raw mut what) })?;
        let Ok(index) = usize::try_from(index) else { return Ok(None) };
        // SAFETY: as above.
        let what = unsafe { CStr::from_ptr(what) }.to_string_lossy().into_owned();
        Ok(Some((index, what)))
    }
}

/// Adds replicas' gradients to those of a source at the end of every backward pass.
#[derive(Debug)]
pub(crate) struct Mirror(NonNull<RawMirror>);

// SAFETY: its tensors are only touched by backward passes, which the owner runs.
unsafe impl Send for Mirror {}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { ddp_mirror_free(self.0.as_ptr()) }
    }
}

impl Mirror {
    /// Every replica has as many parameters as the source, in the same order.
    pub(crate) fn new(source: &[Tensor], replicas: &[Vec<Tensor>]) -> TorchResult<Self> {
        assert!(replicas.iter().all(|replica| replica.len() == source.len()), "equal lists");
        let all = raws(replicas.iter().flatten());
        let (params, n_params, n_replicas) = (raws(source), source.len(), replicas.len());
        // SAFETY: the lists have the lengths given; the mirror keeps references of its own.
        made(|out| unsafe {
            ddp_mirror_new(params.as_ptr(), all.as_ptr(), n_params, n_replicas, out)
        })
        .map(Self)
    }
}

/// What the Reducer is built from.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are c10d's arguments")]
pub(crate) struct ReducerOptions<'a> {
    pub(crate) params: &'a [Tensor],
    pub(crate) names: &'a [String],
    pub(crate) expect_sparse: &'a [bool],
    pub(crate) initial_bucket_limits: &'a [usize],
    pub(crate) bucket_bytes_max: i64,
    pub(crate) first_bucket_bytes_max: i64,
    pub(crate) find_unused_parameters: bool,
    pub(crate) gradient_as_bucket_view: bool,
    pub(crate) static_graph: bool,
    pub(crate) sync_buffers: bool,
}

/// c10d's Reducer with its Logger.
#[derive(Debug)]
pub(crate) struct Reducer(NonNull<RawReducer>);

// SAFETY: the Reducer locks internally and has no thread affinity.
unsafe impl Send for Reducer {}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: owned, freed once; the shim swallows what the destructor throws.
        unsafe { ddp_reducer_free(self.0.as_ptr()) }
    }
}

impl Reducer {
    pub(crate) fn new(group: &Group, options: &ReducerOptions<'_>) -> TorchResult<Self> {
        let ReducerOptions { params, names, expect_sparse, .. } = options;
        assert_eq!(params.len(), names.len(), "one name per parameter");
        assert_eq!(params.len(), expect_sparse.len(), "one flag per parameter");
        let tensors = raws(*params);
        let names = names.iter().map(|name| c_string(name)).collect::<TorchResult<Vec<_>>>()?;
        let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let raw = RawReducerOptions {
            params: tensors.as_ptr(),
            names: names.as_ptr(),
            expect_sparse: expect_sparse.as_ptr(),
            n_params: tensors.len(),
            initial_bucket_limits: options.initial_bucket_limits.as_ptr(),
            n_initial_bucket_limits: options.initial_bucket_limits.len(),
            bucket_bytes_max: options.bucket_bytes_max,
            first_bucket_bytes_max: options.first_bucket_bytes_max,
            find_unused_parameters: options.find_unused_parameters,
            gradient_as_bucket_view: options.gradient_as_bucket_view,
            static_graph: options.static_graph,
            sync_buffers: options.sync_buffers,
        };
        // SAFETY: all pointers outlive the call, with the lengths given; the Reducer copies.
        made(|out| unsafe { ddp_reducer_new(group.raw.as_ptr(), &raw const raw, out) }).map(Self)
    }

    pub(crate) fn before_forward(&self) -> TorchResult<()> {
        // SAFETY: alive during the call; so below.
        check(unsafe { ddp_reducer_before_forward(self.0.as_ptr()) })
    }

    pub(crate) fn prepare_for_backward(&self, outputs: &[&Tensor]) -> TorchResult<()> {
        let outputs = raws(outputs.iter().copied());
        // SAFETY: the tensors outlive the call.
        check(unsafe {
            let (data, n) = (outputs.as_ptr(), outputs.len());
            ddp_reducer_prepare_for_backward(self.0.as_ptr(), data, n)
        })
    }

    pub(crate) fn check_finalized(&self) -> TorchResult<()> {
        // SAFETY: alive during the call.
        check(unsafe { ddp_reducer_check_finalized(self.0.as_ptr()) })
    }

    pub(crate) fn delay_all_reduce_in(&self, loss: &Tensor) -> TorchResult<()> {
        // SAFETY: alive during the call; the hook holds the Reducer weakly.
        check(unsafe { ddp_reducer_delay_all_reduce_in(self.0.as_ptr(), raw(loss)) })
    }

    pub(crate) fn set_work_handle(&self, work: &Work, use_static: bool) -> TorchResult<()> {
        // SAFETY: the Reducer keeps its own reference to the work.
        check(unsafe { ddp_reducer_set_work_handle(self.0.as_ptr(), work.0.as_ptr(), use_static) })
    }

    /// Lets `hook` reduce the buckets from now on; once only.
    pub(crate) fn register_hook(&self, hook: Box<dyn Hook>) -> TorchResult<()> {
        let raw = RawHook {
            context: Box::into_raw(Box::new(hook)).cast(),
            start: hook_start,
            finish: hook_finish,
            drop_continuation: hook_drop_continuation,
            drop_context: hook_drop_context,
        };
        // SAFETY: the shim takes the context over, also when it fails.
        check(unsafe { ddp_reducer_register_hook(self.0.as_ptr(), raw) })
    }

    /// Takes part in one step's reductions with gradients of zero and gets the result.
    pub(crate) fn stand_in(&self, group: &Group, find_unused: bool) -> TorchResult<()> {
        // SAFETY: both are alive during the call.
        check(unsafe { ddp_reducer_stand_in(self.0.as_ptr(), group.raw.as_ptr(), find_unused) })
    }

    /// Which parameters any rank used in the last step, with `find_unused_parameters`.
    pub(crate) fn used(&self) -> TorchResult<Vec<bool>> {
        // SAFETY: alive during the call; `out` receives a new tensor.
        let used = some_tensor(|out| unsafe { ddp_reducer_used_map(self.0.as_ptr(), out) })?;
        let used = Vec::<i32>::try_from(&used).map_err(|error| TorchError(error.to_string()))?;
        Ok(used.into_iter().map(|count| count > 0).collect())
    }

    pub(crate) fn logging_data(&self) -> TorchResult<String> {
        // SAFETY: alive during the call.
        let text = bytes(|out| unsafe { ddp_reducer_logging_data(self.0.as_ptr(), out) })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Equal for two handles on the same tensor object (tied names, shallow clones).
pub(crate) fn tensor_identity(tensor: &Tensor) -> usize {
    // SAFETY: a live tensor.
    unsafe { ddp_tensor_identity(raw(tensor)) }
}

/// Makes `tensor` stand for what `to` stands for, as an assignment through `&mut` would; shallow
/// clones of it stay what they were.
pub(crate) fn rebind(tensor: &Tensor, to: &Tensor) {
    // SAFETY: live tensors, which no other thread can see, since `Tensor` is not `Sync`; and no
    // reference of Rust points into what the handle holds.
    unsafe { ddp_tensor_rebind(raw(tensor), raw(to)) }
}

/// Makes the gradients undefined, which views into buckets allow and `zero_grad` does not.
pub(crate) fn clear_grads(tensors: &[Tensor]) -> TorchResult<()> {
    let tensors = raws(tensors);
    // SAFETY: live tensors.
    check(unsafe { ddp_clear_grads(tensors.as_ptr(), tensors.len()) })
}

/// `loss.backward()` whose error is libtorch's text.
pub(crate) fn backward(loss: &Tensor) -> TorchResult<()> {
    // SAFETY: a live tensor.
    check(unsafe { ddp_backward(raw(loss)) })
}

/// A permutation of `0..n`, equal to Python's with a generator of that seed; Int64, on the CPU.
pub(crate) fn randperm(n: i64, seed: u64) -> TorchResult<Tensor> {
    // SAFETY: `out` receives a new tensor on success; so below.
    some_tensor(|out| unsafe { ddp_randperm(n, seed, out) })
}

/// The state of the CPU's global generator.
pub(crate) fn random_state() -> TorchResult<Tensor> {
    // SAFETY: as above.
    some_tensor(|out| unsafe { ddp_random_state(out) })
}

pub(crate) fn set_random_state(state: &Tensor) -> TorchResult<()> {
    // SAFETY: a live tensor.
    check(unsafe { ddp_set_random_state(raw(state)) })
}

/// Makes a GPU the current one of this thread.
pub(crate) fn cuda_set_device(index: usize) -> TorchResult<()> {
    // SAFETY: no pointers.
    check(unsafe { ddp_cuda_set_device(index as i64) })
}

/// The identity of a GPU, the same in every process of the machine.
pub(crate) fn cuda_uuid(index: usize) -> TorchResult<Vec<u8>> {
    // SAFETY: `out` receives a new object.
    bytes(|out| unsafe { ddp_cuda_uuid(index as i64, out) })
}

pub(crate) fn cuda_free_bytes(index: usize) -> TorchResult<u64> {
    let mut bytes = 0;
    // SAFETY: `bytes` outlives the call.
    check(unsafe { ddp_cuda_free_bytes(index as i64, &raw mut bytes) })?;
    Ok(bytes)
}

/// Sets from how many free bytes on glibc's allocator gives memory back, and up to which size it
/// takes pieces from what it keeps. Other allocators are left as they are.
pub(crate) fn keep_freed_memory(bytes_max: c_int, piece_bytes_max: c_int) {
    // SAFETY: numbers only.
    unsafe { ddp_keep_freed_memory(bytes_max, piece_bytes_max) }
}

/// A trainable leaf that the loss depends on and that no wrapper of this process knows.
pub(crate) fn unwatched_leaf(loss: &Tensor) -> TorchResult<Option<Tensor>> {
    // SAFETY: a live tensor; `out` receives a new one or null.
    made_tensor(|out| unsafe { ddp_unwatched_leaf(raw(loss), out) })
}

/// One step of SGD over all parameters that have a gradient. `momentum_buffers` is empty or of
/// the same length.
pub(crate) fn fused_sgd(
    params: &[Tensor],
    momentum_buffers: &[Tensor],
    config: &SgdConfig,
    is_first_step: bool,
) -> TorchResult<()> {
    let has_buffers = !momentum_buffers.is_empty();
    assert!(!has_buffers || momentum_buffers.len() == params.len(), "one buffer per parameter");
    let (params, buffers) = (raws(params), raws(momentum_buffers));
    let SgdConfig { lr, momentum, dampening, weight_decay, nesterov } = *config;
    let raw = RawSgd { lr, momentum, dampening, weight_decay, nesterov, is_first_step };
    let buffers = if has_buffers { buffers.as_ptr() } else { null() };
    // SAFETY: the lists have the lengths given and outlive the call.
    check(unsafe { ddp_fused_sgd(params.as_ptr(), buffers, params.len(), &raw const raw) })
}

/// One step of AdamW over all parameters that have a gradient; all lists are of equal length.
pub(crate) fn fused_adamw(
    params: &[Tensor],
    averages: &[Tensor],
    squares: &[Tensor],
    steps: &[Tensor],
    config: &AdamWConfig,
) -> TorchResult<()> {
    let n = params.len();
    assert!([averages, squares, steps].iter().all(|list| list.len() == n), "one state each");
    let [params, averages, squares, steps] = [params, averages, squares, steps].map(raws);
    let AdamWConfig { lr, beta1, beta2, eps, weight_decay } = *config;
    let raw = RawAdamW { lr, beta1, beta2, eps, weight_decay };
    // SAFETY: the lists have length `n` and outlive the call.
    check(unsafe {
        let (params, averages) = (params.as_ptr(), averages.as_ptr());
        ddp_fused_adamw(params, averages, squares.as_ptr(), steps.as_ptr(), n, &raw const raw)
    })
}

/// Makes a bucket's result once its collective has ended.
pub(crate) type Finish = Box<dyn FnOnce() -> Result<Tensor, String> + Send>;

/// A bucket's reduction, as a hook started it.
pub(crate) enum Started {
    Done(Tensor),
    Pending(Work, Finish),
}

/// A communication hook; called from the threads that run the backward pass.
pub(crate) trait Hook: Send {
    fn start(&self, gradients: Tensor, index: usize, is_last: bool) -> Result<Started, String>;
}

/// Runs Rust code that C++ called: neither errors nor panics may unwind into it.
fn called_back(body: impl FnOnce() -> Result<(), String>) -> *mut RawError {
    let text = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return null_mut(),
        Ok(Err(text)) => text,
        Err(_) => "the communication hook panicked".to_owned(),
    };
    // SAFETY: the text is valid for its length during the call.
    unsafe { ddp_error_new(text.as_ptr(), text.len()) }
}

extern "C" fn hook_start(
    context: *mut c_void,
    gradients: RawTensor,
    index: usize,
    is_last: bool,
    started: *mut RawStarted,
) -> *mut RawError {
    called_back(|| {
        // SAFETY: `context` is the box that `register_hook` gave away, alive until `drop_context`;
        // the tensor is new and given to us.
        let (hook, gradients) =
            unsafe { (&*context.cast::<Box<dyn Hook>>(), Tensor::from_ptr(gradients)) };
        let mut out = RawStarted { result: null_mut(), work: null_mut(), continuation: null_mut() };
        match hook.start(gradients, index, is_last)? {
            Started::Done(tensor) => out.result = into_raw(tensor),
            Started::Pending(work, finish) => {
                out.work = work.0.as_ptr();
                std::mem::forget(work);
                out.continuation = Box::into_raw(Box::new(finish)).cast();
            }
        }
        // SAFETY: `started` is valid for writing during the call.
        unsafe { started.write(out) };
        Ok(())
    })
}

extern "C" fn hook_finish(continuation: *mut c_void, result: *mut RawTensor) -> *mut RawError {
    called_back(|| {
        // SAFETY: the continuation is the box that `hook_start` gave away, consumed once, here or
        // in `hook_drop_continuation`.
        let finish = unsafe { Box::from_raw(continuation.cast::<Finish>()) };
        let tensor = into_raw(finish()?);
        // SAFETY: `result` is valid for writing during the call.
        unsafe { result.write(tensor) };
        Ok(())
    })
}

extern "C" fn hook_drop_continuation(continuation: *mut c_void) {
    // SAFETY: as for `hook_finish`. A panic in a destructor must not unwind into C++.
    let finish = unsafe { Box::from_raw(continuation.cast::<Finish>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(finish)));
}

extern "C" fn hook_drop_context(context: *mut c_void) {
    // SAFETY: the box that `register_hook` gave away, freed once.
    let hook = unsafe { Box::from_raw(context.cast::<Box<dyn Hook>>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(hook)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lose_traces_and_source_places() {
        let text = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed \
                    by peer [127.0.0.1]:1\nException raised from x at y\nframe #0";
        assert_eq!(tidy(text), "Connection closed by peer [127.0.0.1]:1");
        assert_eq!(tidy("plain [1, 2] text"), "plain [1, 2] text");
    }

    #[test]
    fn permutations_leave_the_global_generator_alone() {
        tch::manual_seed(3);
        let first = Tensor::rand([4], (tch::Kind::Float, tch::Device::Cpu));
        tch::manual_seed(3);
        let order = Vec::<i64>::try_from(&randperm(10, 7).unwrap()).unwrap();
        let second = Tensor::rand([4], (tch::Kind::Float, tch::Device::Cpu));
        assert_eq!(first, second);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    }
}

// The C face of libtorch's c10d that ffi.rs calls: stores, process groups, collectives, the
// Reducer, and a few tensor helpers that tch lacks. No logic lives here: each function makes one
// c10d call (or one short sequence that c10d wants unbroken), catches everything, and returns an
// error object, null for success. Whoever gets an error or an object frees it, once.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define DDP_NOEXCEPT noexcept
extern "C" {
#else
#include <stdbool.h>
#define DDP_NOEXCEPT
#endif

typedef struct ddp_error ddp_error;
typedef struct ddp_bytes ddp_bytes;
typedef struct ddp_store ddp_store;
typedef struct ddp_group ddp_group;
typedef struct ddp_work ddp_work;
typedef struct ddp_watch ddp_watch;
typedef struct ddp_mirror ddp_mirror;
typedef struct ddp_reducer ddp_reducer;
// A `torch::Tensor`, as torch-sys hands it out.
typedef void* ddp_tensor;

// Errors and byte strings.
const char* ddp_error_message(const ddp_error* error) DDP_NOEXCEPT;
void ddp_error_free(ddp_error* error) DDP_NOEXCEPT;
const uint8_t* ddp_bytes_data(const ddp_bytes* bytes) DDP_NOEXCEPT;
size_t ddp_bytes_len(const ddp_bytes* bytes) DDP_NOEXCEPT;
void ddp_bytes_free(ddp_bytes* bytes) DDP_NOEXCEPT;

// Key-value stores. `listen_fd` is a bound listening socket for the server, or -1.
ddp_error* ddp_store_tcp(
    const char* host, uint16_t port, bool is_server, int listen_fd, int64_t timeout_ms,
    ddp_store** out) DDP_NOEXCEPT;
ddp_error* ddp_store_local(ddp_store** out) DDP_NOEXCEPT;
ddp_error* ddp_store_prefixed(
    const ddp_store* store, const char* prefix, ddp_store** out) DDP_NOEXCEPT;
ddp_error* ddp_store_clone(const ddp_store* store, ddp_store** out) DDP_NOEXCEPT;
void ddp_store_free(ddp_store* store) DDP_NOEXCEPT;
ddp_error* ddp_store_set(
    const ddp_store* store, const char* key, const uint8_t* data, size_t len) DDP_NOEXCEPT;
ddp_error* ddp_store_get(
    const ddp_store* store, const char* key, ddp_bytes** out) DDP_NOEXCEPT;
ddp_error* ddp_store_compare_set(
    const ddp_store* store, const char* key, const char* expected, const char* desired,
    ddp_bytes** out) DDP_NOEXCEPT;
ddp_error* ddp_store_check(const ddp_store* store, const char* key, bool* out) DDP_NOEXCEPT;
ddp_error* ddp_store_wait(
    const ddp_store* store, const char* key, int64_t timeout_ms) DDP_NOEXCEPT;

// Process groups. `host` is the address to listen on, `interface` a network interface; one of
// them may be given, both null lets gloo resolve this machine's name.
ddp_error* ddp_group_gloo(
    const ddp_store* store, int rank, int size, int64_t timeout_ms, const char* host,
    const char* interface, const char* name, ddp_group** out) DDP_NOEXCEPT;
// NCCL for CUDA tensors and Gloo for those of the CPU; an error in a build without NCCL.
ddp_error* ddp_group_nccl(
    const ddp_store* store, int rank, int size, int64_t timeout_ms, const char* host,
    const char* interface, const char* name, int64_t device, ddp_group** out) DDP_NOEXCEPT;
// The identity of a GPU, the same in every process of the machine.
ddp_error* ddp_cuda_uuid(int64_t device, ddp_bytes** out) DDP_NOEXCEPT;
// Frees the group after flushing NCCL's work (or giving it up, after a failure).
void ddp_group_free(ddp_group* group, bool failed) DDP_NOEXCEPT;

// Collectives: they return at once; the result is there after `ddp_work_wait`. `op` is the number
// of c10d::ReduceOp::RedOpType (0 sum, 1 average, 2 product, 3 minimum, 4 maximum).
ddp_error* ddp_group_broadcast(
    const ddp_group* group, ddp_tensor tensor, int root, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_all_reduce(
    const ddp_group* group, ddp_tensor tensor, int op, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_reduce(
    const ddp_group* group, ddp_tensor tensor, int root, int op, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_all_gather(
    const ddp_group* group, ddp_tensor input, const ddp_tensor* outputs, size_t n_outputs,
    ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_gather(
    const ddp_group* group, ddp_tensor input, const ddp_tensor* outputs, size_t n_outputs,
    int root, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_scatter(
    const ddp_group* group, ddp_tensor output, const ddp_tensor* inputs, size_t n_inputs,
    int root, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_reduce_scatter(
    const ddp_group* group, ddp_tensor output, const ddp_tensor* inputs, size_t n_inputs, int op,
    ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_send(
    const ddp_group* group, ddp_tensor tensor, int to, int tag, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_recv(
    const ddp_group* group, ddp_tensor tensor, int from, int tag, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_barrier(const ddp_group* group, ddp_work** out) DDP_NOEXCEPT;
ddp_error* ddp_group_monitored_barrier(
    const ddp_group* group, int64_t timeout_ms, bool wait_all) DDP_NOEXCEPT;
ddp_error* ddp_work_wait(const ddp_work* work) DDP_NOEXCEPT;
ddp_error* ddp_work_is_completed(const ddp_work* work, bool* out) DDP_NOEXCEPT;
void ddp_work_free(ddp_work* work) DDP_NOEXCEPT;

// Broadcasts tensors from `root`, coalesced into pieces of `bytes_max`, without recording the
// writes in the tensors' version counters.
ddp_error* ddp_broadcast_coalesced(
    const ddp_group* group, const ddp_tensor* tensors, size_t n_tensors, size_t bytes_max,
    int root) DDP_NOEXCEPT;
ddp_error* ddp_verify_params(
    const ddp_group* group, const ddp_tensor* tensors, size_t n_tensors) DDP_NOEXCEPT;

// Counts, per parameter, how often a backward pass has accumulated into its gradient.
ddp_error* ddp_watch_new(
    const ddp_tensor* params, size_t n_params, ddp_watch** out) DDP_NOEXCEPT;
void ddp_watch_free(ddp_watch* watch) DDP_NOEXCEPT;
uint64_t ddp_watch_total(const ddp_watch* watch) DDP_NOEXCEPT;
void ddp_watch_take_counts(const ddp_watch* watch, uint32_t* counts) DDP_NOEXCEPT;
// The first parameter whose kind, device, requires-grad flag or gradient accumulator is no longer
// what it was, or -1; `what` gets a static text.
ddp_error* ddp_watch_changed(
    const ddp_watch* watch, int64_t* index, const char** what) DDP_NOEXCEPT;

// Adds, at the end of every backward pass, the gradients of replicas' parameters to those of the
// source, and clears them. `replicas` holds `n_replicas` lists of `n_params` one after the other.
ddp_error* ddp_mirror_new(
    const ddp_tensor* source, const ddp_tensor* replicas, size_t n_params, size_t n_replicas,
    ddp_mirror** out) DDP_NOEXCEPT;
void ddp_mirror_free(ddp_mirror* mirror) DDP_NOEXCEPT;

// The Reducer with its Logger.
typedef struct ddp_reducer_options {
  const ddp_tensor* params;
  const char* const* names;
  const bool* expect_sparse;
  size_t n_params;
  const size_t* initial_bucket_limits;
  size_t n_initial_bucket_limits;
  int64_t bucket_bytes_max;
  int64_t first_bucket_bytes_max;
  bool find_unused_parameters;
  bool gradient_as_bucket_view;
  bool static_graph;
  bool sync_buffers;
} ddp_reducer_options;
ddp_error* ddp_reducer_new(
    const ddp_group* group, const ddp_reducer_options* options, ddp_reducer** out) DDP_NOEXCEPT;
void ddp_reducer_free(ddp_reducer* reducer) DDP_NOEXCEPT;
// The order of calls of one step: before_forward, (forward), prepare_for_backward, (backward),
// check_finalized.
ddp_error* ddp_reducer_before_forward(const ddp_reducer* reducer) DDP_NOEXCEPT;
ddp_error* ddp_reducer_prepare_for_backward(
    const ddp_reducer* reducer, const ddp_tensor* outputs, size_t n_outputs) DDP_NOEXCEPT;
ddp_error* ddp_reducer_check_finalized(const ddp_reducer* reducer) DDP_NOEXCEPT;
// Makes the next backward of `loss` end with the delayed all-reduce that the first iteration of a
// static graph needs.
ddp_error* ddp_reducer_delay_all_reduce_in(
    const ddp_reducer* reducer, ddp_tensor loss) DDP_NOEXCEPT;
ddp_error* ddp_reducer_set_work_handle(
    const ddp_reducer* reducer, const ddp_work* work, bool use_static_world_size) DDP_NOEXCEPT;
// `key=value` lines of DDPLoggingData.
ddp_error* ddp_reducer_logging_data(const ddp_reducer* reducer, ddp_bytes** out) DDP_NOEXCEPT;

// Communication hooks written in Rust. `start` is given the flat gradients of a bucket (a new
// tensor that Rust takes over) and fills in `ddp_started`: either `result`, or `work` with a
// continuation that `finish` consumes once the work has ended. `drop_*` free what was not consumed.
typedef struct ddp_started {
  ddp_tensor result;
  ddp_work* work;
  void* continuation;
} ddp_started;
typedef struct ddp_hook {
  void* context;
  ddp_error* (*start)(
      void* context, ddp_tensor gradients, size_t index, bool is_last, ddp_started* started);
  ddp_error* (*finish)(void* continuation, ddp_tensor* result);
  void (*drop_continuation)(void* continuation);
  void (*drop_context)(void* context);
} ddp_hook;
ddp_error* ddp_error_new(const uint8_t* text, size_t len) DDP_NOEXCEPT;
// Takes the hook's context over, also when it fails.
ddp_error* ddp_reducer_register_hook(
    const ddp_reducer* reducer, ddp_hook hook) DDP_NOEXCEPT;
// Takes part in the reductions of one step without gradients of its own, then gives the parameters
// the reduced gradients, as on the other ranks.
ddp_error* ddp_reducer_stand_in(
    const ddp_reducer* reducer, const ddp_group* group, bool find_unused) DDP_NOEXCEPT;

// How many ranks used each parameter in the last step; a new Int32 tensor on the CPU.
ddp_error* ddp_reducer_used_map(const ddp_reducer* reducer, ddp_tensor* out) DDP_NOEXCEPT;

// Collectives that a backward pass goes through: the sum, whose gradient is the sum of gradients;
// all ranks' tensors stacked on a new first dimension, whose gradient is that rank's slice of the
// sum. The result is a new tensor owned by the caller.
ddp_error* ddp_group_all_reduce_differentiable(
    const ddp_group* group, ddp_tensor tensor, ddp_tensor* out) DDP_NOEXCEPT;
ddp_error* ddp_group_all_gather_differentiable(
    const ddp_group* group, ddp_tensor tensor, ddp_tensor* out) DDP_NOEXCEPT;

// Optimizer steps over all parameters that have a gradient, in place. Lists are of equal length,
// except that `momentum_buffers` may be null.
typedef struct ddp_sgd {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, is_first_step;
} ddp_sgd;
ddp_error* ddp_fused_sgd(
    const ddp_tensor* params, const ddp_tensor* momentum_buffers, size_t n,
    const ddp_sgd* config) DDP_NOEXCEPT;
typedef struct ddp_adamw {
  double lr, beta1, beta2, eps, weight_decay;
} ddp_adamw;
ddp_error* ddp_fused_adamw(
    const ddp_tensor* params, const ddp_tensor* averages, const ddp_tensor* squares,
    const ddp_tensor* steps, size_t n, const ddp_adamw* config) DDP_NOEXCEPT;

// The state of the CPU's global generator, as torch.get_rng_state gives it.
ddp_error* ddp_random_state(ddp_tensor* out) DDP_NOEXCEPT;
ddp_error* ddp_set_random_state(ddp_tensor state) DDP_NOEXCEPT;
// Makes a CUDA device the current one; tells its free bytes.
ddp_error* ddp_cuda_set_device(int64_t index) DDP_NOEXCEPT;
ddp_error* ddp_cuda_free_bytes(int64_t index, uint64_t* out) DDP_NOEXCEPT;
// A leaf that `loss` depends on and that no live watch of this process knows, or null; a new
// tensor owned by the caller.
ddp_error* ddp_unwatched_leaf(ddp_tensor loss, ddp_tensor* out) DDP_NOEXCEPT;

// From how many free bytes on glibc's allocator gives memory back, and up to which size it takes
// pieces from what it keeps; nothing with another C library.
void ddp_keep_freed_memory(int bytes_max, int piece_bytes_max) DDP_NOEXCEPT;

// Tensor helpers that tch lacks.
uintptr_t ddp_tensor_identity(ddp_tensor tensor) DDP_NOEXCEPT;
// Makes the handle `tensor` one on the tensor object of `to`; other handles keep theirs.
void ddp_tensor_rebind(ddp_tensor tensor, ddp_tensor to) DDP_NOEXCEPT;
ddp_error* ddp_clear_grads(const ddp_tensor* tensors, size_t n_tensors) DDP_NOEXCEPT;
ddp_error* ddp_backward(ddp_tensor loss) DDP_NOEXCEPT;
// A permutation of 0..n drawn from a generator of its own, as torch.randperm gives with
// torch.Generator().manual_seed(seed). The result is a new tensor owned by the caller.
ddp_error* ddp_randperm(int64_t n, uint64_t seed, ddp_tensor* out) DDP_NOEXCEPT;

#ifdef __cplusplus
} // extern "C"
#endif

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
void ddp_group_free(ddp_group* group) DDP_NOEXCEPT;

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

// Tensor helpers that tch lacks.
uintptr_t ddp_tensor_identity(ddp_tensor tensor) DDP_NOEXCEPT;
ddp_error* ddp_clear_grads(const ddp_tensor* tensors, size_t n_tensors) DDP_NOEXCEPT;
ddp_error* ddp_backward(ddp_tensor loss) DDP_NOEXCEPT;
// A permutation of 0..n drawn from a generator of its own, as torch.randperm gives with
// torch.Generator().manual_seed(seed). The result is a new tensor owned by the caller.
ddp_error* ddp_randperm(int64_t n, uint64_t seed, ddp_tensor* out) DDP_NOEXCEPT;

#ifdef __cplusplus
} // extern "C"
#endif

#include "ddp_shim.h"

#include <atomic>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

struct ddp_error {
  std::string message;
};
struct ddp_bytes {
  std::vector<uint8_t> data;
};
struct ddp_store {
  c10::intrusive_ptr<c10d::Store> store;
};
struct ddp_group {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};
struct ddp_work {
  c10::intrusive_ptr<c10d::Work> work;
};

namespace {

using Node = torch::autograd::Node;
using std::chrono::milliseconds;

ddp_error* error_of(std::string message) noexcept {
  try {
    return new ddp_error{std::move(message)};
  } catch (...) {
    std::abort(); // No memory left to say so.
  }
}

// Runs `body` and turns whatever it throws into an error object: nothing may unwind into Rust.
template <typename F>
ddp_error* guarded(F&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& e) {
    return error_of(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return error_of(e.what());
  } catch (...) {
    return error_of("a C++ exception of unknown type");
  }
}

// For destructors, which have nobody to report to.
template <typename T>
void destroy(T* object) noexcept {
  ddp_error* error = guarded([&] { delete object; });
  delete error;
}

at::Tensor& tensor_of(ddp_tensor tensor) {
  return *static_cast<at::Tensor*>(tensor);
}

std::vector<at::Tensor> tensors_of(const ddp_tensor* tensors, size_t n) {
  std::vector<at::Tensor> out;
  out.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    out.push_back(tensor_of(tensors[i]));
  }
  return out;
}

c10d::ReduceOp op_of(int op) {
  return static_cast<c10d::ReduceOp::RedOpType>(op);
}

ddp_store* boxed(c10::intrusive_ptr<c10d::Store> store) {
  return new ddp_store{std::move(store)};
}

// Runs one collective without recording it in the autograd graph.
template <typename F>
ddp_error* collective(ddp_work** out, F&& start) noexcept {
  return guarded([&] {
    at::NoGradGuard no_grad;
    *out = new ddp_work{start()};
  });
}

} // namespace

extern "C" {

const char* ddp_error_message(const ddp_error* error) noexcept {
  return error->message.c_str();
}

void ddp_error_free(ddp_error* error) noexcept {
  destroy(error);
}

const uint8_t* ddp_bytes_data(const ddp_bytes* bytes) noexcept {
  return bytes->data.data();
}

size_t ddp_bytes_len(const ddp_bytes* bytes) noexcept {
  return bytes->data.size();
}

void ddp_bytes_free(ddp_bytes* bytes) noexcept {
  destroy(bytes);
}

ddp_error* ddp_store_tcp(
    const char* host, uint16_t port, bool is_server, int listen_fd, int64_t timeout_ms,
    ddp_store** out) noexcept {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    if (listen_fd >= 0) {
      options.masterListenFd = listen_fd;
    }
    *out = boxed(c10::make_intrusive<c10d::TCPStore>(host, options));
  });
}

ddp_error* ddp_store_local(ddp_store** out) noexcept {
  return guarded([&] { *out = boxed(c10::make_intrusive<c10d::HashStore>()); });
}

ddp_error* ddp_store_prefixed(
    const ddp_store* store, const char* prefix, ddp_store** out) noexcept {
  return guarded([&] {
    *out = boxed(c10::make_intrusive<c10d::PrefixStore>(prefix, store->store));
  });
}

ddp_error* ddp_store_clone(const ddp_store* store, ddp_store** out) noexcept {
  return guarded([&] { *out = boxed(store->store->clone()); });
}

void ddp_store_free(ddp_store* store) noexcept {
  destroy(store);
}

ddp_error* ddp_store_set(
    const ddp_store* store, const char* key, const uint8_t* data, size_t len) noexcept {
  return guarded([&] { store->store->set(key, std::vector<uint8_t>(data, data + len)); });
}

ddp_error* ddp_store_get(const ddp_store* store, const char* key, ddp_bytes** out) noexcept {
  return guarded([&] { *out = new ddp_bytes{store->store->get(key)}; });
}

ddp_error* ddp_store_compare_set(
    const ddp_store* store, const char* key, const char* expected, const char* desired,
    ddp_bytes** out) noexcept {
  return guarded([&] {
    std::string value = store->store->compareSet(key, expected, desired);
    *out = new ddp_bytes{std::vector<uint8_t>(value.begin(), value.end())};
  });
}

ddp_error* ddp_store_check(const ddp_store* store, const char* key, bool* out) noexcept {
  return guarded([&] { *out = store->store->check({key}); });
}

ddp_error* ddp_store_wait(const ddp_store* store, const char* key, int64_t timeout_ms) noexcept {
  return guarded([&] { store->store->wait({key}, milliseconds(timeout_ms)); });
}

} // extern "C"

namespace {

c10::intrusive_ptr<c10d::Backend> gloo_backend(
    const ddp_store* store, int rank, int size, int64_t timeout_ms, const char* host,
    const char* interface, const char* name) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(milliseconds(timeout_ms));
  options->devices.push_back(
      interface != nullptr ? Gloo::createDeviceForInterface(interface)
          : host != nullptr ? Gloo::createDeviceForHostname(host)
                            : Gloo::createDefaultDevice());
  options->group_name = name;
  return c10::make_intrusive<Gloo>(store->store, rank, size, options);
}

} // namespace

extern "C" {

ddp_error* ddp_group_gloo(
    const ddp_store* store, int rank, int size, int64_t timeout_ms, const char* host,
    const char* interface, const char* name, ddp_group** out) noexcept {
  return guarded([&] {
    auto backend = gloo_backend(store, rank, size, timeout_ms, host, interface, name);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store->store, rank, size);
    for (auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
      group->setBackend(device, c10d::ProcessGroup::BackendType::GLOO, backend);
    }
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    group->setGroupName(name);
    *out = new ddp_group{std::move(group)};
  });
}

ddp_error* ddp_group_nccl(
    const ddp_store* store, int rank, int size, int64_t timeout_ms, const char* host,
    const char* interface, const char* name, int64_t device, ddp_group** out) noexcept {
  return guarded([&] {
#ifdef USE_C10D_NCCL
    using Type = c10d::ProcessGroup::BackendType;
    auto gloo = gloo_backend(store, rank, size, timeout_ms, host, interface, name);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = milliseconds(timeout_ms);
    options->group_name = name;
    auto corner = c10::make_intrusive<c10d::PrefixStore>("nccl", store->store);
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(corner, rank, size, options);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store->store, rank, size);
    group->setBoundDeviceId(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
    group->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo);
    group->setBackend(c10::DeviceType::CUDA, Type::NCCL, nccl);
    group->setDefaultBackend(Type::NCCL);
    group->setGroupName(name);
    *out = new ddp_group{std::move(group)};
#else
    (void)store, (void)rank, (void)size, (void)timeout_ms, (void)host, (void)interface;
    (void)name, (void)device, (void)out;
    throw std::runtime_error("this build has no NCCL");
#endif
  });
}

ddp_error* ddp_cuda_uuid(int64_t device, ddp_bytes** out) noexcept {
  return guarded([&] {
#ifdef USE_C10D_NCCL
    auto* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
    const auto* bytes = reinterpret_cast<const uint8_t*>(properties->uuid.bytes);
    *out = new ddp_bytes{std::vector<uint8_t>(bytes, bytes + sizeof(properties->uuid.bytes))};
#else
    (void)device, (void)out;
    throw std::runtime_error("this build has no NCCL");
#endif
  });
}

void ddp_group_free(ddp_group* group, bool failed) noexcept {
  // NCCL must be shut down (or, with work that will never end, given up) before it is destroyed.
  ddp_error* error = guarded([&] {
    if (group->group->getBackendType() == c10d::ProcessGroup::BackendType::NCCL) {
      auto nccl = group->group->getBackend(c10d::ProcessGroup::BackendType::NCCL);
      failed ? nccl->abort() : nccl->shutdown();
    }
  });
  delete error;
  destroy(group);
}

ddp_error* ddp_group_broadcast(
    const ddp_group* group, ddp_tensor tensor, int root, ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor).detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return group->group->broadcast(tensors, options);
  });
}

ddp_error* ddp_group_all_reduce(
    const ddp_group* group, ddp_tensor tensor, int op, ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor).detach()};
    c10d::AllreduceOptions options;
    options.reduceOp = op_of(op);
    return group->group->allreduce(tensors, options);
  });
}

ddp_error* ddp_group_reduce(
    const ddp_group* group, ddp_tensor tensor, int root, int op, ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor).detach()};
    c10d::ReduceOptions options;
    options.rootRank = root;
    options.reduceOp = op_of(op);
    return group->group->reduce(tensors, options);
  });
}

ddp_error* ddp_group_all_gather(
    const ddp_group* group, ddp_tensor input, const ddp_tensor* outputs, size_t n_outputs,
    ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<std::vector<at::Tensor>> gathered{tensors_of(outputs, n_outputs)};
    std::vector<at::Tensor> inputs{tensor_of(input).detach()};
    return group->group->allgather(gathered, inputs);
  });
}

ddp_error* ddp_group_gather(
    const ddp_group* group, ddp_tensor input, const ddp_tensor* outputs, size_t n_outputs,
    int root, ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<std::vector<at::Tensor>> gathered;
    if (n_outputs > 0) {
      gathered.push_back(tensors_of(outputs, n_outputs));
    }
    std::vector<at::Tensor> inputs{tensor_of(input).detach()};
    c10d::GatherOptions options;
    options.rootRank = root;
    return group->group->gather(gathered, inputs, options);
  });
}

ddp_error* ddp_group_scatter(
    const ddp_group* group, ddp_tensor output, const ddp_tensor* inputs, size_t n_inputs,
    int root, ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<at::Tensor> outputs{tensor_of(output).detach()};
    std::vector<std::vector<at::Tensor>> pieces;
    if (n_inputs > 0) {
      pieces.push_back(tensors_of(inputs, n_inputs));
    }
    c10d::ScatterOptions options;
    options.rootRank = root;
    return group->group->scatter(outputs, pieces, options);
  });
}

ddp_error* ddp_group_reduce_scatter(
    const ddp_group* group, ddp_tensor output, const ddp_tensor* inputs, size_t n_inputs, int op,
    ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<at::Tensor> outputs{tensor_of(output).detach()};
    std::vector<std::vector<at::Tensor>> pieces{tensors_of(inputs, n_inputs)};
    c10d::ReduceScatterOptions options;
    options.reduceOp = op_of(op);
    return group->group->reduce_scatter(outputs, pieces, options);
  });
}

ddp_error* ddp_group_send(
    const ddp_group* group, ddp_tensor tensor, int to, int tag, ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor).detach()};
    return group->group->send(tensors, to, tag);
  });
}

ddp_error* ddp_group_recv(
    const ddp_group* group, ddp_tensor tensor, int from, int tag, ddp_work** out) noexcept {
  return collective(out, [&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor).detach()};
    return group->group->recv(tensors, from, tag);
  });
}

ddp_error* ddp_group_barrier(const ddp_group* group, ddp_work** out) noexcept {
  return collective(out, [&] { return group->group->barrier(); });
}

ddp_error* ddp_group_monitored_barrier(
    const ddp_group* group, int64_t timeout_ms, bool wait_all) noexcept {
  return guarded([&] {
    c10d::BarrierOptions options;
    options.timeout = milliseconds(timeout_ms);
    group->group->monitoredBarrier(options, wait_all);
  });
}

ddp_error* ddp_work_wait(const ddp_work* work) noexcept {
  return guarded([&] { work->work->wait(); });
}

ddp_error* ddp_work_is_completed(const ddp_work* work, bool* out) noexcept {
  return guarded([&] { *out = work->work->isCompleted(); });
}

void ddp_work_free(ddp_work* work) noexcept {
  destroy(work);
}

ddp_error* ddp_broadcast_coalesced(
    const ddp_group* group, const ddp_tensor* tensors, size_t n_tensors, size_t bytes_max,
    int root) noexcept {
  return guarded([&] {
    at::NoGradGuard no_grad;
    // `variable_data` shares storage but not the version counter: a graph that saved a buffer
    // does not take the broadcast for an in-place change.
    std::vector<at::Tensor> data;
    data.reserve(n_tensors);
    for (size_t i = 0; i < n_tensors; ++i) {
      data.push_back(tensor_of(tensors[i]).variable_data());
    }
    c10d::broadcast_coalesced(group->group, data, bytes_max, root);
  });
}

ddp_error* ddp_verify_params(
    const ddp_group* group, const ddp_tensor* tensors, size_t n_tensors) noexcept {
  return guarded([&] {
    c10d::verify_params_across_processes(group->group, tensors_of(tensors, n_tensors), {});
  });
}

} // extern "C"

namespace {

// How many live watches know a tensor, over all of this process.
std::mutex watched_mutex;
std::unordered_map<const c10::TensorImpl*, size_t> watched;

void count_watched(const at::Tensor& tensor, bool more) {
  std::lock_guard<std::mutex> lock(watched_mutex);
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (more) {
    ++watched[impl];
  } else if (--watched[impl] == 0) {
    watched.erase(impl);
  }
}

bool is_watched(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(watched_mutex);
  return watched.count(tensor.unsafeGetTensorImpl()) > 0;
}

} // namespace

// The counters are shared with the hooks, which may outlive the watch inside a live graph.
struct ddp_watch {
  struct Counts {
    explicit Counts(size_t n) : per_param(n) {}
    std::atomic<uint64_t> total{0};
    std::vector<std::atomic<uint32_t>> per_param;
  };
  struct Param {
    at::Tensor tensor;
    c10::ScalarType kind;
    c10::Device device;
    c10::intrusive_ptr<Node> accumulator;
    uintptr_t hook;
  };

  std::vector<Param> params;
  std::shared_ptr<Counts> counts;

  ~ddp_watch() {
    for (auto& param : params) {
      param.accumulator->del_post_hook(param.hook);
      count_watched(param.tensor, false);
    }
  }
};

extern "C" {

ddp_error* ddp_watch_new(const ddp_tensor* params, size_t n_params, ddp_watch** out) noexcept {
  return guarded([&] {
    auto watch = std::make_unique<ddp_watch>();
    watch->counts = std::make_shared<ddp_watch::Counts>(n_params);
    for (size_t i = 0; i < n_params; ++i) {
      const at::Tensor& tensor = tensor_of(params[i]);
      auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
      auto counts = watch->counts;
      auto hook = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [counts, i](const auto& outputs, const auto&) {
            counts->per_param[i].fetch_add(1, std::memory_order_relaxed);
            counts->total.fetch_add(1, std::memory_order_relaxed);
            return outputs;
          }));
      watch->params.push_back(
          {tensor, tensor.scalar_type(), tensor.device(), std::move(accumulator), hook});
      count_watched(tensor, true);
    }
    *out = watch.release();
  });
}

void ddp_watch_free(ddp_watch* watch) noexcept {
  destroy(watch);
}

uint64_t ddp_watch_total(const ddp_watch* watch) noexcept {
  return watch->counts->total.load(std::memory_order_relaxed);
}

void ddp_watch_take_counts(const ddp_watch* watch, uint32_t* counts) noexcept {
  auto& per_param = watch->counts->per_param;
  for (size_t i = 0; i < per_param.size(); ++i) {
    counts[i] = per_param[i].exchange(0, std::memory_order_relaxed);
  }
}

ddp_error* ddp_watch_changed(
    const ddp_watch* watch, int64_t* index, const char** what) noexcept {
  return guarded([&] {
    *index = -1;
    for (size_t i = 0; i < watch->params.size(); ++i) {
      const auto& param = watch->params[i];
      const char* change = param.tensor.scalar_type() != param.kind ? "kind"
          : param.tensor.device() != param.device                   ? "device"
          : !param.tensor.requires_grad()                           ? "requires_grad flag"
          : torch::autograd::impl::try_get_grad_accumulator(param.tensor) != param.accumulator
          ? "gradient accumulator (its data was replaced)"
          : nullptr;
      if (change != nullptr) {
        *index = static_cast<int64_t>(i);
        *what = change;
        return;
      }
    }
  });
}

} // extern "C"

// The state is shared with the hooks, which may outlive the mirror inside a live graph.
struct ddp_mirror {
  struct State {
    std::vector<at::Tensor> source;
    std::vector<std::vector<at::Tensor>> replicas;
    std::atomic<bool> is_queued{false};

    void add_up() {
      at::NoGradGuard no_grad;
      is_queued = false;
      for (auto& replica : replicas) {
        for (size_t i = 0; i < source.size(); ++i) {
          at::Tensor grad = replica[i].grad();
          if (!grad.defined()) {
            continue;
          }
          grad = grad.detach().to(source[i].device());
          if (source[i].grad().defined()) {
            source[i].mutable_grad().add_(grad);
          } else {
            source[i].mutable_grad() = grad.clone();
          }
          replica[i].mutable_grad().reset();
        }
      }
    }
  };

  std::shared_ptr<State> state = std::make_shared<State>();
  std::vector<std::pair<c10::intrusive_ptr<Node>, uintptr_t>> hooks;

  ~ddp_mirror() {
    for (auto& [accumulator, hook] : hooks) {
      accumulator->del_post_hook(hook);
    }
  }
};

extern "C" {

ddp_error* ddp_mirror_new(
    const ddp_tensor* source, const ddp_tensor* replicas, size_t n_params, size_t n_replicas,
    ddp_mirror** out) noexcept {
  return guarded([&] {
    auto mirror = std::make_unique<ddp_mirror>();
    auto state = mirror->state;
    state->source = tensors_of(source, n_params);
    for (size_t replica = 0; replica < n_replicas; ++replica) {
      state->replicas.push_back(tensors_of(replicas + replica * n_params, n_params));
    }
    for (auto& replica : state->replicas) {
      for (auto& param : replica) {
        auto accumulator = torch::autograd::impl::grad_accumulator(param);
        std::weak_ptr<ddp_mirror::State> weak = state;
        auto hook = accumulator->add_post_hook(
            std::make_unique<torch::autograd::utils::LambdaPostHook>(
                [weak](const auto& outputs, const auto&) {
                  auto state = weak.lock();
                  if (state && !state->is_queued.exchange(true)) {
                    torch::autograd::Engine::get_default_engine().queue_callback(
                        [state] { state->add_up(); });
                  }
                  return outputs;
                }));
        mirror->hooks.emplace_back(std::move(accumulator), hook);
      }
    }
    *out = mirror.release();
  });
}

void ddp_mirror_free(ddp_mirror* mirror) noexcept {
  destroy(mirror);
}

} // extern "C"

// Members are destroyed bottom up: the logger refers to the reducer.
struct ddp_reducer {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
};

extern "C" {

ddp_error* ddp_reducer_new(
    const ddp_group* group, const ddp_reducer_options* options, ddp_reducer** out) noexcept {
  return guarded([&] {
    size_t n = options->n_params;
    auto params = tensors_of(options->params, n);
    std::vector<bool> sparse(options->expect_sparse, options->expect_sparse + n);
    std::unordered_map<size_t, std::string> names;
    for (size_t i = 0; i < n; ++i) {
      names[i] = options->names[i];
    }
    std::vector<size_t> limits(
        options->initial_bucket_limits,
        options->initial_bucket_limits + options->n_initial_bucket_limits);
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(params, limits, sparse));
    // Gradients tend to come in the reverse of the order of use.
    std::reverse(buckets.begin(), buckets.end());
    auto handle = std::make_unique<ddp_reducer>();
    handle->reducer = std::make_shared<c10d::Reducer>(
        std::move(params), std::move(buckets), group->group, std::move(sparse),
        options->bucket_bytes_max, options->find_unused_parameters,
        options->gradient_as_bucket_view, std::move(names), options->first_bucket_bytes_max,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
    handle->logger = std::make_shared<c10d::Logger>(handle->reducer);
    handle->reducer->set_logger(handle->logger);
    handle->logger->set_construction_data_and_log(
        "tch_ddp", {}, -1, options->sync_buffers, /*has_sync_bn=*/false, options->static_graph);
    if (options->static_graph) {
      handle->reducer->set_static_graph();
      handle->logger->set_static_graph();
    }
    *out = handle.release();
  });
}

void ddp_reducer_free(ddp_reducer* reducer) noexcept {
  destroy(reducer);
}

ddp_error* ddp_reducer_before_forward(const ddp_reducer* reducer) noexcept {
  return guarded([&] {
    reducer->logger->set_runtime_stats_and_log();
    reducer->reducer->prepare_for_forward();
    reducer->reducer->rebuild_buckets();
  });
}

ddp_error* ddp_reducer_prepare_for_backward(
    const ddp_reducer* reducer, const ddp_tensor* outputs, size_t n_outputs) noexcept {
  return guarded(
      [&] { reducer->reducer->prepare_for_backward(tensors_of(outputs, n_outputs)); });
}

ddp_error* ddp_reducer_check_finalized(const ddp_reducer* reducer) noexcept {
  return guarded([&] { reducer->reducer->check_finalized(); });
}

ddp_error* ddp_reducer_delay_all_reduce_in(
    const ddp_reducer* reducer, ddp_tensor loss) noexcept {
  return guarded([&] {
    std::weak_ptr<c10d::Reducer> weak = reducer->reducer;
    tensor_of(loss).register_hook([weak](const at::Tensor& grad) {
      torch::autograd::Engine::get_default_engine().queue_callback([weak] {
        if (auto reducer = weak.lock()) {
          reducer->delay_all_reduce();
        }
      });
      return grad;
    });
  });
}

ddp_error* ddp_reducer_set_work_handle(
    const ddp_reducer* reducer, const ddp_work* work, bool use_static_world_size) noexcept {
  return guarded([&] {
    reducer->reducer->set_forward_pass_work_handle(work->work, use_static_world_size);
  });
}

ddp_error* ddp_reducer_logging_data(const ddp_reducer* reducer, ddp_bytes** out) noexcept {
  return guarded([&] {
    auto data = reducer->logger->get_ddp_logging_data();
    std::ostringstream text;
    for (const auto& [key, value] : data.strs_map) {
      text << key << '=' << value << '\n';
    }
    for (const auto& [key, value] : data.ints_map) {
      text << key << '=' << value << '\n';
    }
    std::string bytes = text.str();
    *out = new ddp_bytes{std::vector<uint8_t>(bytes.begin(), bytes.end())};
  });
}

uintptr_t ddp_tensor_identity(ddp_tensor tensor) noexcept {
  return reinterpret_cast<uintptr_t>(tensor_of(tensor).unsafeGetTensorImpl());
}

void ddp_tensor_rebind(ddp_tensor tensor, ddp_tensor to) noexcept {
  tensor_of(tensor) = tensor_of(to);
}

ddp_error* ddp_clear_grads(const ddp_tensor* tensors, size_t n_tensors) noexcept {
  return guarded([&] {
    for (size_t i = 0; i < n_tensors; ++i) {
      tensor_of(tensors[i]).mutable_grad().reset();
    }
  });
}

ddp_error* ddp_backward(ddp_tensor loss) noexcept {
  return guarded([&] { tensor_of(loss).backward(); });
}

ddp_error* ddp_randperm(int64_t n, uint64_t seed, ddp_tensor* out) noexcept {
  return guarded([&] {
    auto generator = at::detail::createCPUGenerator(seed);
    *out = new at::Tensor(at::randperm(n, generator, at::TensorOptions(at::kLong)));
  });
}

} // extern "C"

namespace {

// Frees a continuation that was not consumed.
struct Continuation {
  ddp_hook hook;
  void* pointer;
  Continuation(const ddp_hook& hook, void* pointer) : hook(hook), pointer(pointer) {}
  Continuation(const Continuation&) = delete;
  Continuation& operator=(const Continuation&) = delete;
  ~Continuation() {
    if (pointer != nullptr) {
      hook.drop_continuation(pointer);
    }
  }
};

void check_rust(ddp_error* error) {
  if (error != nullptr) {
    std::unique_ptr<ddp_error> owned(error);
    throw std::runtime_error(owned->message);
  }
}

at::Tensor take(ddp_tensor tensor) {
  std::unique_ptr<at::Tensor> owned(static_cast<at::Tensor*>(tensor));
  return *owned;
}

class RustHook : public c10d::CommHookInterface {
 public:
  explicit RustHook(ddp_hook hook) : hook_(hook) {}
  RustHook(const RustHook&) = delete;
  RustHook& operator=(const RustHook&) = delete;
  ~RustHook() override {
    hook_.drop_context(hook_.context);
  }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    ddp_started started{};
    auto gradients = std::make_unique<at::Tensor>(bucket.getBufferRef());
    check_rust(hook_.start(
        hook_.context, gradients.release(), bucket.getIndex(), bucket.isLast(), &started));
    if (started.work == nullptr) {
      auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
      done->markCompleted(take(started.result));
      return done;
    }
    std::unique_ptr<ddp_work> work(started.work);
    auto continuation = std::make_shared<Continuation>(hook_, started.continuation);
    return work->work->getFuture()->then(
        [continuation](c10::ivalue::Future& ended) -> c10::IValue {
          ended.value(); // Rethrows the collective's error.
          ddp_tensor result = nullptr;
          void* pointer = std::exchange(continuation->pointer, nullptr);
          check_rust(continuation->hook.finish(pointer, &result));
          return take(result);
        },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return result.toTensor();
  }

 private:
  ddp_hook hook_;
};

} // namespace

extern "C" {

ddp_error* ddp_error_new(const uint8_t* text, size_t len) noexcept {
  return error_of(std::string(reinterpret_cast<const char*>(text), len));
}

ddp_error* ddp_reducer_register_hook(const ddp_reducer* reducer, ddp_hook hook) noexcept {
  return guarded([&] {
    reducer->reducer->register_comm_hook(std::make_unique<RustHook>(hook));
    reducer->logger->set_comm_hook("rust");
  });
}

ddp_error* ddp_reducer_stand_in(
    const ddp_reducer* reducer, const ddp_group* group, bool find_unused) noexcept {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto buckets = reducer->reducer->get_grad_buckets(/*return_zero_tensors=*/true);
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (auto& bucket : buckets) {
      futures.push_back(reducer->reducer->run_comm_hook(bucket));
    }
    at::Tensor used;
    if (find_unused) {
      used = reducer->reducer->get_local_used_map_on_device();
      used.zero_();
      std::vector<at::Tensor> maps{used};
      group->group->allreduce(maps)->wait();
    }
    for (auto& future : futures) {
      future->wait();
      future->value();
    }
    for (auto& bucket : buckets) {
      auto params = bucket.getParameters();
      auto grads = bucket.getGradients();
      for (size_t i = 0; i < params.size(); ++i) {
        at::Tensor param = params[i];
        param.mutable_grad() = grads[i].clone();
      }
    }
    reducer->reducer->push_rebuilt_params_for_all_indices();
  });
}

ddp_error* ddp_reducer_used_map(const ddp_reducer* reducer, ddp_tensor* out) noexcept {
  return guarded([&] {
    *out = new at::Tensor(
        reducer->reducer->get_local_used_map_on_device().to(at::kCPU, at::kInt).clone());
  });
}

} // extern "C"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

at::Tensor summed(const Group& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor.detach().clone(at::MemoryFormat::Contiguous)};
  group->allreduce(tensors)->wait();
  return tensors[0];
}

class AllReduce : public torch::autograd::Function<AllReduce> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Group& group) {
    ctx->saved_data["group"] = group;
    return summed(group, tensor);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto group = ctx->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    return {summed(group, grads[0]), at::Tensor()};
  }
};

class AllGather : public torch::autograd::Function<AllGather> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Group& group) {
    ctx->saved_data["group"] = group;
    std::vector<at::Tensor> inputs{tensor.detach().contiguous()};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < group->getSize(); ++rank) {
      outputs[0].push_back(at::empty_like(inputs[0]));
    }
    group->allgather(outputs, inputs)->wait();
    return at::stack(outputs[0]);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto group = ctx->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    return {summed(group, grads[0])[group->getRank()], at::Tensor()};
  }
};

// The lists of the parameters that have a gradient.
struct Updated {
  std::vector<at::Tensor> params, grads;
  std::vector<std::vector<at::Tensor>> states;
};

Updated updated(const ddp_tensor* params, std::vector<const ddp_tensor*> states, size_t n) {
  Updated out;
  out.states.resize(states.size());
  for (size_t i = 0; i < n; ++i) {
    const at::Tensor& param = tensor_of(params[i]);
    if (!param.grad().defined()) {
      continue;
    }
    out.params.push_back(param);
    out.grads.push_back(param.grad());
    for (size_t state = 0; state < states.size(); ++state) {
      out.states[state].push_back(tensor_of(states[state][i]));
    }
  }
  return out;
}

} // namespace

extern "C" {

ddp_error* ddp_group_all_reduce_differentiable(
    const ddp_group* group, ddp_tensor tensor, ddp_tensor* out) noexcept {
  return guarded(
      [&] { *out = new at::Tensor(AllReduce::apply(tensor_of(tensor), group->group)); });
}

ddp_error* ddp_group_all_gather_differentiable(
    const ddp_group* group, ddp_tensor tensor, ddp_tensor* out) noexcept {
  return guarded(
      [&] { *out = new at::Tensor(AllGather::apply(tensor_of(tensor), group->group)); });
}

ddp_error* ddp_fused_sgd(
    const ddp_tensor* params, const ddp_tensor* momentum_buffers, size_t n,
    const ddp_sgd* config) noexcept {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::vector<const ddp_tensor*> states;
    if (momentum_buffers != nullptr) {
      states.push_back(momentum_buffers);
    }
    auto lists = updated(params, states, n);
    if (!lists.params.empty() && states.empty() && config->weight_decay == 0) {
      // One addition, and then faster on the CPU than the fused kernel.
      at::_foreach_add_(lists.params, lists.grads, -config->lr);
    } else if (!lists.params.empty()) {
      at::_fused_sgd_(
          lists.params, lists.grads, states.empty() ? std::vector<at::Tensor>{} : lists.states[0],
          config->weight_decay, config->momentum, config->lr, config->dampening, config->nesterov,
          /*maximize=*/false, config->is_first_step);
    }
  });
}

ddp_error* ddp_fused_adamw(
    const ddp_tensor* params, const ddp_tensor* averages, const ddp_tensor* squares,
    const ddp_tensor* steps, size_t n, const ddp_adamw* config) noexcept {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto lists = updated(params, {averages, squares, steps}, n);
    if (!lists.params.empty()) {
      at::_foreach_add_(lists.states[2], 1);
      at::_fused_adamw_(
          lists.params, lists.grads, lists.states[0], lists.states[1], {}, lists.states[2],
          config->lr, config->beta1, config->beta2, config->weight_decay, config->eps,
          /*amsgrad=*/false, /*maximize=*/false);
    }
  });
}

ddp_error* ddp_random_state(ddp_tensor* out) noexcept {
  return guarded(
      [&] { *out = new at::Tensor(at::detail::getDefaultCPUGenerator().get_state()); });
}

ddp_error* ddp_set_random_state(ddp_tensor state) noexcept {
  return guarded([&] {
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(tensor_of(state));
  });
}

ddp_error* ddp_cuda_set_device(int64_t index) noexcept {
  return guarded([&] {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)
        ->setDevice(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
  });
}

ddp_error* ddp_cuda_free_bytes(int64_t index, uint64_t* out) noexcept {
  return guarded([&] {
    auto* allocator = at::getDeviceAllocator(c10::DeviceType::CUDA);
    *out = allocator->getMemoryInfo(static_cast<c10::DeviceIndex>(index)).first;
  });
}

void ddp_keep_freed_memory(int bytes_max, int piece_bytes_max) noexcept {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, piece_bytes_max);
  mallopt(M_TRIM_THRESHOLD, bytes_max);
#else
  (void)bytes_max, (void)piece_bytes_max;
#endif
}

ddp_error* ddp_unwatched_leaf(ddp_tensor loss, ddp_tensor* out) noexcept {
  return guarded([&] {
    *out = nullptr;
    std::unordered_set<Node*> seen;
    std::vector<Node*> stack{tensor_of(loss).grad_fn().get()};
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (node == nullptr || !seen.insert(node).second) {
        continue;
      }
      if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
        if (!is_watched(leaf->variable)) {
          *out = new at::Tensor(leaf->variable);
          return;
        }
      }
      for (const auto& edge : node->next_edges()) {
        stack.push_back(edge.function.get());
      }
    }
  });
}

} // extern "C"

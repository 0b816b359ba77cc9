// The C ABI over the classes of ops/ and runtime/: each function unwraps its handles, calls one
// method, and turns an exception into a dtrun_error.

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "base/version.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "ops/communicator.h"
#include "runtime/context.h"
#include "runtime/device/devices.h"
#include "runtime/gradient_reducer.h"

struct dtrun_error {
  int32_t code;
  std::string message;
};

struct dtrun_communicator {
  dtrun::ops::Communicator* communicator;
  std::unique_ptr<dtrun::ops::Communicator> owned;  // null for the world
  uint64_t default_bucket_bytes;
};

struct dtrun_context {
  explicit dtrun_context(const std::vector<std::pair<std::string, std::string>>& options)
      : context(dtrun::base::ProcessEnv, options),
        world{&context.world(), nullptr, context.options().bucket_bytes} {}
  dtrun::runtime::Context context;
  dtrun_communicator world;
};

struct dtrun_memory {
  std::unique_ptr<dtrun::ops::Memory> memory;
};

struct dtrun_work {
  dtrun::ops::Work work;
};

struct dtrun_reducer {
  dtrun::runtime::GradientReducer reducer;
};

namespace {

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::detail::FromC;

dtrun_error* NewError(ErrorCode code, const char* message) {
  return new dtrun_error{static_cast<int32_t>(code), message};
}

// No exception may cross the C ABI.
template <typename Body>
dtrun_error* Guard(const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return NewError(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return NewError(ErrorCode::kSystem, "out of memory");
  } catch (const std::exception& error) {
    return NewError(ErrorCode::kSystem, error.what());
  }
}

void CheckHandle(const void* handle, const char* name) {
  if (handle == nullptr) throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is NULL");
}

dtrun::Scale ToScale(const dtrun_scale* scale) {
  return scale == nullptr ? dtrun::Scale{} : dtrun::Scale{scale->before, scale->after};
}

dtrun::ReduceOp ToOp(int32_t reduce_op) { return static_cast<dtrun::ReduceOp>(reduce_op); }

// One count per rank; empty for NULL.
dtrun::ops::Counts ToCounts(const dtrun::ops::Communicator& communicator, const uint64_t* counts) {
  if (counts == nullptr) return {};
  return dtrun::ops::Counts(counts, counts + communicator.size());
}

// A communicator made from `parent`; NULL for none.
dtrun_communicator* NewCommunicator(
    const dtrun_communicator& parent, std::unique_ptr<dtrun::ops::Communicator> owned) {
  if (owned == nullptr) return nullptr;
  dtrun::ops::Communicator* pointer = owned.get();
  return new dtrun_communicator{pointer, std::move(owned), parent.default_bucket_bytes};
}

template <typename Start>
dtrun_error* StartWork(dtrun_communicator* communicator, dtrun_work** work, const Start& start) {
  return Guard([&] {
    CheckHandle(communicator, "communicator");
    CheckHandle(work, "work");
    *work = new dtrun_work{start(*communicator->communicator)};
  });
}

}  // namespace

int32_t dtrun_error_code(const dtrun_error* error) { return error == nullptr ? 0 : error->code; }
const char* dtrun_error_message(const dtrun_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}
void dtrun_error_destroy(dtrun_error* error) { delete error; }

const char* dtrun_version(void) { return dtrun::base::kVersion; }

dtrun_error* dtrun_init(const dtrun_option* options, size_t option_count, dtrun_context** context) {
  return Guard([&] {
    CheckHandle(context, "context");
    std::vector<std::pair<std::string, std::string>> given;
    for (size_t i = 0; i < option_count; ++i) {
      CheckHandle(options[i].name, "the name of an option");
      CheckHandle(options[i].value, "the value of an option");
      given.emplace_back(options[i].name, options[i].value);
    }
    *context = new dtrun_context(given);
  });
}

dtrun_error* dtrun_shutdown(dtrun_context* context) {
  return Guard([&] {
    CheckHandle(context, "context");
    context->context.Shutdown();
  });
}

void dtrun_context_destroy(dtrun_context* context) { delete context; }

dtrun_topology dtrun_context_topology(const dtrun_context* context) {
  return context->context.topology();
}

int32_t dtrun_context_host_count(const dtrun_context* context) {
  return static_cast<int32_t>(context->context.hosts().size());
}

const char* dtrun_context_host_name(const dtrun_context* context, int32_t host) {
  if (host < 0 || host >= dtrun_context_host_count(context)) return nullptr;
  return context->context.hosts()[static_cast<size_t>(host)].name.c_str();
}

int32_t dtrun_context_host_slots(const dtrun_context* context, int32_t host) {
  if (host < 0 || host >= dtrun_context_host_count(context)) return 0;
  return context->context.hosts()[static_cast<size_t>(host)].slots;
}

int32_t dtrun_context_threads(const dtrun_context* context) { return context->context.threads(); }
int32_t dtrun_context_terminal_columns(const dtrun_context* context) {
  return context->context.terminal_columns();
}
dtrun_communicator* dtrun_context_world(dtrun_context* context) { return &context->world; }

dtrun_error* dtrun_cuda_device_count(int32_t* count) {
  return Guard([&] {
    CheckHandle(count, "count");
    *count = dtrun::runtime::CudaDeviceCount();
  });
}

int32_t dtrun_communicator_rank(const dtrun_communicator* communicator) {
  return communicator->communicator->rank();
}
int32_t dtrun_communicator_size(const dtrun_communicator* communicator) {
  return communicator->communicator->size();
}
const char* dtrun_communicator_backend(const dtrun_communicator* communicator) {
  return communicator->communicator->backend();
}
const char* dtrun_communicator_name(const dtrun_communicator* communicator) {
  return communicator->communicator->members().name.c_str();
}

dtrun_error* dtrun_communicator_duplicate(
    dtrun_communicator* communicator, dtrun_communicator** duplicate) {
  return Guard([&] {
    CheckHandle(communicator, "communicator");
    CheckHandle(duplicate, "duplicate");
    *duplicate = NewCommunicator(*communicator, communicator->communicator->Duplicate());
  });
}

dtrun_error* dtrun_communicator_split(
    dtrun_communicator* communicator, int32_t colour, int32_t key, dtrun_communicator** part) {
  return Guard([&] {
    CheckHandle(communicator, "communicator");
    CheckHandle(part, "part");
    *part = NewCommunicator(*communicator, communicator->communicator->Split(colour, key));
  });
}

dtrun_error* dtrun_communicator_subset(
    dtrun_communicator* communicator, const int32_t* ranks, size_t rank_count,
    dtrun_communicator** subset) {
  return Guard([&] {
    CheckHandle(communicator, "communicator");
    CheckHandle(subset, "subset");
    if (rank_count > 0) CheckHandle(ranks, "ranks");
    *subset = NewCommunicator(
        *communicator,
        communicator->communicator->Subset(std::vector<int>(ranks, ranks + rank_count)));
  });
}

void dtrun_communicator_destroy(dtrun_communicator* communicator) {
  // The world is a part of its context.
  if (communicator != nullptr && communicator->owned != nullptr) delete communicator;
}

dtrun_error* dtrun_communicator_allocate(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory) {
  return Guard([&] {
    CheckHandle(communicator, "communicator");
    CheckHandle(memory, "memory");
    *memory = new dtrun_memory{communicator->communicator->Allocate(bytes)};
  });
}

void* dtrun_memory_data(const dtrun_memory* memory) { return memory->memory->data(); }
uint64_t dtrun_memory_bytes(const dtrun_memory* memory) { return memory->memory->bytes(); }
void dtrun_memory_destroy(dtrun_memory* memory) { delete memory; }

dtrun_error* dtrun_start_all_reduce(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t reduce_op,
    const dtrun_scale* scale, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartAllReduce(FromC(input), FromC(output), ToOp(reduce_op), ToScale(scale));
  });
}

dtrun_error* dtrun_start_reduce_scatter(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t reduce_op,
    const dtrun_scale* scale, const uint64_t* shares, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartReduceScatter(
        FromC(input), FromC(output), ToOp(reduce_op), ToScale(scale), ToCounts(c, shares));
  });
}

dtrun_error* dtrun_start_reduce(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    int32_t reduce_op, const dtrun_scale* scale, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartReduce(FromC(input), FromC(output), root, ToOp(reduce_op), ToScale(scale));
  });
}

dtrun_error* dtrun_start_broadcast(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t root, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartBroadcast(FromC(buffer), root);
  });
}

dtrun_error* dtrun_start_all_gather(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output,
    const uint64_t* receive_counts, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartAllGather(FromC(input), FromC(output), ToCounts(c, receive_counts));
  });
}

dtrun_error* dtrun_start_all_to_all(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output,
    const uint64_t* send_counts, const uint64_t* receive_counts, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartAllToAll(
        FromC(input), FromC(output), ToCounts(c, send_counts), ToCounts(c, receive_counts));
  });
}

dtrun_error* dtrun_start_gather(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    const uint64_t* receive_counts, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartGather(FromC(input), FromC(output), root, ToCounts(c, receive_counts));
  });
}

dtrun_error* dtrun_start_scatter(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    const uint64_t* send_counts, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartScatter(FromC(input), FromC(output), root, ToCounts(c, send_counts));
  });
}

dtrun_error* dtrun_start_barrier(dtrun_communicator* communicator, dtrun_work** work) {
  return StartWork(
      communicator, work, [&](dtrun::ops::Communicator& c) { return c.StartBarrier(); });
}

dtrun_error* dtrun_start_send(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t peer, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartSend(FromC(buffer), peer);
  });
}

dtrun_error* dtrun_start_receive(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t peer, dtrun_work** work) {
  return StartWork(communicator, work, [&](dtrun::ops::Communicator& c) {
    return c.StartReceive(FromC(buffer), peer);
  });
}

dtrun_error* dtrun_deal_rows(uint64_t rows, uint64_t row_elements, int32_t size, uint64_t* counts) {
  return Guard([&] {
    CheckHandle(counts, "counts");
    if (size < 1) throw Error(ErrorCode::kInvalidArgument, "deal_rows: expected a rank at least");
    uint64_t elements = 0;
    if (__builtin_mul_overflow(rows, row_elements, &elements)) {
      throw Error(ErrorCode::kInvalidArgument, "deal_rows: more elements than 64 bits can count");
    }
    const dtrun::ops::Counts dealt = dtrun::ops::DealRows(rows, row_elements, size);
    std::copy(dealt.begin(), dealt.end(), counts);
  });
}

dtrun_error* dtrun_work_test(dtrun_work* work, int32_t* done) {
  return Guard([&] {
    CheckHandle(work, "work");
    CheckHandle(done, "done");
    *done = work->work.Test() ? 1 : 0;
  });
}

dtrun_error* dtrun_work_wait(dtrun_work* work) {
  return Guard([&] {
    CheckHandle(work, "work");
    work->work.Wait();
  });
}

void dtrun_work_destroy(dtrun_work* work) { delete work; }

dtrun_error* dtrun_reducer_create(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    int32_t reduce_op, uint64_t bucket_bytes, dtrun_reducer** reducer) {
  return Guard([&] {
    CheckHandle(communicator, "communicator");
    CheckHandle(reducer, "reducer");
    std::vector<dtrun::runtime::Gradient> list;
    for (size_t i = 0; i < gradient_count; ++i) {
      CheckHandle(gradients[i].name, "the name of a gradient");
      list.push_back({gradients[i].name, dtrun::detail::FromC(gradients[i].buffer)});
    }
    *reducer = new dtrun_reducer{dtrun::runtime::GradientReducer(
        *communicator->communicator, std::move(list), static_cast<dtrun::ReduceOp>(reduce_op),
        bucket_bytes == 0 ? communicator->default_bucket_bytes : bucket_bytes)};
  });
}

dtrun_error* dtrun_reducer_gradient(
    const dtrun_reducer* reducer, size_t index, dtrun_buffer* buffer) {
  return Guard([&] {
    CheckHandle(reducer, "reducer");
    CheckHandle(buffer, "buffer");
    *buffer = dtrun::detail::ToC(reducer->reducer.gradient(index));
  });
}

dtrun_error* dtrun_reducer_mark_ready(dtrun_reducer* reducer, size_t index) {
  return Guard([&] {
    CheckHandle(reducer, "reducer");
    reducer->reducer.MarkReady(index);
  });
}

dtrun_error* dtrun_reducer_mark_ready_from(
    dtrun_reducer* reducer, size_t index, const void* source) {
  return Guard([&] {
    CheckHandle(reducer, "reducer");
    if (reducer->reducer.gradient(index).count > 0) CheckHandle(source, "source");
    reducer->reducer.MarkReadyFrom(index, source);
  });
}

dtrun_error* dtrun_reducer_mark_unused(dtrun_reducer* reducer, size_t index) {
  return Guard([&] {
    CheckHandle(reducer, "reducer");
    reducer->reducer.MarkUnused(index);
  });
}

dtrun_error* dtrun_reducer_was_used(const dtrun_reducer* reducer, size_t index, int32_t* used) {
  return Guard([&] {
    CheckHandle(reducer, "reducer");
    CheckHandle(used, "used");
    *used = reducer->reducer.WasUsed(index) ? 1 : 0;
  });
}

dtrun_error* dtrun_reducer_wait(dtrun_reducer* reducer) {
  return Guard([&] {
    CheckHandle(reducer, "reducer");
    reducer->reducer.Wait();
  });
}

void dtrun_reducer_destroy(dtrun_reducer* reducer) { delete reducer; }

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "ops/backends/backends.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/c_api/handles.h"
#include "runtime/device/block_device.h"

namespace {

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;
using dtrun::detail::FromC;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;

dtrun::Scale ToScale(const dtrun_scale* scale) {
  return scale == nullptr ? dtrun::Scale{} : dtrun::Scale{scale->before, scale->after};
}

dtrun::ReduceOp ToOp(int32_t reduce_op) { return static_cast<dtrun::ReduceOp>(reduce_op); }

// One count per rank; empty for NULL.
dtrun::ops::Counts ToCounts(const dtrun::ops::Communicator& communicator, const uint64_t* counts) {
  if (counts == nullptr) return {};
  return dtrun::ops::Counts(counts, counts + communicator.size());
}

// A handle for a communicator made from `parent`; NULL if `owned` is null.
dtrun_communicator* NewCommunicator(
    const dtrun_communicator& parent, std::unique_ptr<dtrun::ops::Communicator> owned) {
  if (owned == nullptr) return nullptr;
  dtrun::ops::Communicator* pointer = owned.get();
  return new dtrun_communicator{parent.owner, pointer, std::move(owned), parent.reducer_defaults};
}

template <typename Start>
dtrun_error* StartWork(dtrun_communicator* communicator, dtrun_work** work, const Start& start) {
  return Guard([&] {
    CheckNotNull(work, "work");
    dtrun_communicator& c = Use(communicator, "communicator");
    *work = new dtrun_work{c.owner, start(*c.communicator)};
  });
}

}  // namespace

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
    CheckNotNull(duplicate, "duplicate");
    dtrun_communicator& parent = Use(communicator, "communicator");
    *duplicate = NewCommunicator(parent, parent.communicator->Duplicate());
  });
}

dtrun_error* dtrun_communicator_reform(
    dtrun_communicator* communicator, dtrun_communicator** left) {
  return Guard([&] {
    CheckNotNull(left, "left");
    dtrun_communicator& lost = Use(communicator, "communicator");
    *left = NewCommunicator(lost, lost.communicator->Reform());
  });
}

dtrun_error* dtrun_communicator_split(
    dtrun_communicator* communicator, int32_t colour, int32_t key, dtrun_communicator** part) {
  return Guard([&] {
    CheckNotNull(part, "part");
    dtrun_communicator& parent = Use(communicator, "communicator");
    *part = NewCommunicator(parent, parent.communicator->Split(colour, key));
  });
}

dtrun_error* dtrun_communicator_subset(
    dtrun_communicator* communicator, const int32_t* ranks, size_t rank_count,
    dtrun_communicator** subset) {
  return Guard([&] {
    CheckNotNull(subset, "subset");
    if (rank_count > 0) CheckNotNull(ranks, "ranks");
    dtrun_communicator& parent = Use(communicator, "communicator");
    *subset = NewCommunicator(
        parent, parent.communicator->Subset(std::vector<int>(ranks, ranks + rank_count)));
  });
}

void dtrun_communicator_destroy(dtrun_communicator* communicator) {
  // The world belongs to its context.
  if (communicator != nullptr && communicator->owned != nullptr) Destroy(communicator);
}

dtrun_error* dtrun_communicator_allocate(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory) {
  return Guard([&] {
    CheckNotNull(memory, "memory");
    dtrun_communicator& c = Use(communicator, "communicator");
    *memory = new dtrun_memory{c.owner, c.communicator->Allocate(bytes)};
  });
}

dtrun_error* dtrun_communicator_allocate_shared(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory) {
  return Guard([&] {
    CheckNotNull(memory, "memory");
    dtrun_communicator& c = Use(communicator, "communicator");
    *memory = new dtrun_memory{
        c.owner, c.communicator->size() == 1 ? dtrun::ops::AllocatePrivate(bytes)
                                             : c.communicator->AllocateShared(bytes)};
  });
}

void* dtrun_memory_data(const dtrun_memory* memory) { return memory->memory->data(); }
uint64_t dtrun_memory_bytes(const dtrun_memory* memory) { return memory->memory->bytes(); }
void dtrun_memory_destroy(dtrun_memory* memory) { Destroy(memory); }

dtrun_error* dtrun_broadcast_bytes(
    dtrun_communicator* communicator, const void* data, uint64_t bytes, int32_t root,
    dtrun_memory** received) {
  return Guard([&] {
    CheckNotNull(received, "received");
    dtrun_communicator& c = Use(communicator, "communicator");
    if (bytes > 0 && c.communicator->rank() == root) CheckNotNull(data, "data");
    *received =
        new dtrun_memory{c.owner, dtrun::ops::BroadcastBytes(*c.communicator, data, bytes, root)};
  });
}

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
    CheckNotNull(counts, "counts");
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
    CheckNotNull(done, "done");
    *done = Use(work, "work").work.Test() ? 1 : 0;
  });
}

dtrun_error* dtrun_work_wait(dtrun_work* work) {
  return Guard([&] { Use(work, "work").work.Wait(); });
}

void dtrun_work_destroy(dtrun_work* work) { Destroy(work); }

using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;

dtrun_error* dtrun_communicator_allocate_on_device(
    dtrun_communicator* communicator, int32_t device, uint64_t bytes, dtrun_memory** memory) {
  return Guard([&] {
    CheckNotNull(memory, "memory");
    dtrun_communicator& c = Use(communicator, "communicator");
    *memory = new dtrun_memory{c.owner, c.communicator->AllocateOnDevice(device, bytes)};
  });
}

dtrun_error* dtrun_communicator_device_backend(
    dtrun_communicator* communicator, int32_t device, const char** backend) {
  return Guard([&] {
    CheckNotNull(backend, "backend");
    *backend = Use(communicator, "communicator").communicator->device_group(device).backend();
  });
}

dtrun_error* dtrun_communicator_use_device_backends(
    dtrun_communicator* communicator, const char* names) {
  return Guard([&] {
    CheckNotNull(names, "names");
    dtrun_communicator& used = Use(communicator, "communicator");
    const dtrun::ops::DeviceSettings settings{names, used.owner.gpu_memory_bytes};
    used.communicator->UseDevices(dtrun::ops::DeviceBackends(
        settings, used.owner.log == nullptr ? nullptr : *used.owner.log));
  });
}

dtrun_error* dtrun_communicator_check_device(dtrun_communicator* communicator) {
  return Guard([&] { Use(communicator, "communicator").communicator->CheckDevice(); });
}

dtrun_error* dtrun_describe_cuda_device(
    int32_t device, const char** name, const char** bus_id, uint64_t* memory_bytes) {
  return Guard([&] {
    CheckNotNull(name, "name");
    CheckNotNull(bus_id, "bus_id");
    CheckNotNull(memory_bytes, "memory_bytes");
    const dtrun::runtime::CudaDevice& found = dtrun::runtime::DescribeCudaDevice(device);
    *name = found.name.c_str();
    *bus_id = found.bus_id.c_str();
    *memory_bytes = found.memory_bytes;
  });
}

dtrun_error* dtrun_clear(dtrun_buffer buffer) {
  return Guard([&] {
    const dtrun::Buffer cleared = dtrun::detail::FromC(buffer);
    if (cleared.count == 0) return;
    CheckNotNull(buffer.data, "data of the buffer");
    dtrun::runtime::BlockDeviceOf(cleared).Clear(cleared);
  });
}

dtrun_error* dtrun_copy(dtrun_buffer from, dtrun_buffer to) {
  return Guard([&] {
    const dtrun::Buffer source = dtrun::detail::FromC(from), target = dtrun::detail::FromC(to);
    if (source.bytes() != target.bytes() ||
        (source.device >= 0 && target.device >= 0 && source.device != target.device)) {
      throw dtrun::Error(
          dtrun::ErrorCode::kInvalidArgument,
          Text(
              "a copy of ", source.bytes(), " bytes on device ", source.device, " to ",
              target.bytes(), " bytes on device ", target.device,
              "; expected equal sizes, and one GPU at most"));
    }
    if (source.count == 0) return;
    CheckNotNull(from.data, "data of the source");
    CheckNotNull(to.data, "data of the target");
    dtrun::runtime::Copy(source, target);
  });
}

dtrun_error* dtrun_multiply(dtrun_buffer buffer, double factor) {
  return Guard([&] {
    const dtrun::Buffer changed = dtrun::detail::FromC(buffer);
    if (changed.dtype != dtrun::DType::kF32 && changed.dtype != dtrun::DType::kF64) {
      throw dtrun::Error(
          dtrun::ErrorCode::kInvalidArgument,
          Text("multiplies a buffer of ", dtrun::NameOf(changed.dtype), "; expected f32 or f64"));
    }
    if (changed.count == 0) return;
    CheckNotNull(buffer.data, "data of the buffer");
    dtrun::runtime::BlockDeviceOf(changed).Multiply(changed, factor);
  });
}

namespace {

std::vector<dtrun::Buffer> ReadBuffers(const dtrun_buffer* buffers, size_t count) {
  std::vector<dtrun::Buffer> list;
  if (count > 0) CheckNotNull(buffers, "buffers");
  for (size_t i = 0; i < count; ++i) {
    list.push_back(dtrun::detail::FromC(buffers[i]));
    if (list.back().count > 0) CheckNotNull(list.back().data, "data of a buffer");
  }
  return list;
}

}  // namespace

dtrun_error* dtrun_squared_norms(const dtrun_buffer* buffers, size_t count, double* norms) {
  return Guard([&] {
    if (count > 0) CheckNotNull(norms, "norms");
    const std::vector<double> sums = dtrun::runtime::SquaredNorms(ReadBuffers(buffers, count));
    std::copy(sums.begin(), sums.end(), norms);
  });
}

dtrun_error* dtrun_find_non_finite(const dtrun_buffer* buffers, size_t count, size_t* index) {
  return Guard([&] {
    CheckNotNull(index, "index");
    *index = dtrun::runtime::FindNonFinite(ReadBuffers(buffers, count)).value_or(count);
  });
}

using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;

dtrun_error* dtrun_communicator_register_on_device(
    dtrun_communicator* communicator, int32_t device, void* data, uint64_t bytes,
    dtrun_memory** memory) {
  return Guard([&] {
    CheckNotNull(memory, "memory");
    dtrun_communicator& c = Use(communicator, "communicator");
    c.communicator->device_group(device);
    *memory = new dtrun_memory{c.owner, std::make_unique<dtrun::ops::Memory>(data, bytes)};
  });
}

const char* dtrun_memory_obstacle(const dtrun_memory*) { return ""; }

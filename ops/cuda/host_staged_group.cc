// A large call goes in chunks through one block of pinned memory: to the host, over the host's
// communicator, and back. The copies run in the caller's stream.
//
// If ranks make different calls, their numbers of chunks may differ. So the ranks compare a call in
// chunks as a whole, before its first chunk. For a call without chunks, the host's communicator
// compares the calls. If it finds a mismatch, all ranks compare their original calls, because some
// ranks may already be in the comparison for a call in chunks.

#include "ops/cuda/host_staged_group.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/collective/device_parts.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/communicator_setup.h"

extern "C" const unsigned long long dtrun_collectives[];

namespace dtrun::ops::cuda {
namespace {

class GpuMemory : public Memory {
 public:
  explicit GpuMemory(gpu::DeviceMemory memory)
      : Memory(memory.as<void>(), memory.bytes()), memory_(std::move(memory)) {}

 private:
  gpu::DeviceMemory memory_;
};

// For destructors, which cannot throw: the communicator or the GPU reports its error itself.
template <typename Wait>
void WaitIgnoringErrors(const Wait& wait) {
  try {
    wait();
  } catch (const Error&) {
  }
}

class HostStagedGroup : public DeviceGroup {
 public:
  HostStagedGroup(Communicator& host, const gpu::Device& device, uint64_t chunk_bytes)
      : host_(host), device_(device), chunk_bytes_(chunk_bytes), copied_(device) {}

  ~HostStagedGroup() override {
    WaitIgnoringErrors([this] { copied_.Synchronize(); });
    for (Sent& sent : sent_) WaitIgnoringErrors([&sent] { sent.work.Wait(); });
  }

  const char* backend() const override { return "host_staged"; }
  int device() const override { return device_.index(); }

  void Enqueue(const Collective& collective) override {
    const auto stream = static_cast<CUstream>(StreamOf(collective, host_.rank()));
    const gpu::DeviceScope scope(device_);
    RefuseCapture(device_, collective, host_.rank(), backend());
    EndSends();
    if (collective.kind == CollectiveKind::kSend) return Send(collective, stream);
    // The last call may still copy its result back from the pinned memory that this call uses. That
    // result may be the input of this call.
    copied_.Synchronize();
    const uint64_t chunks = ChunkCount(collective, host_.rank(), host_.size(), chunk_bytes_);
    try {
      if (chunks == 1) {
        DoAtOnce(collective, stream);
      } else {
        AgreeOnCall(host_, collective);
        DoInChunks(collective, chunks, stream);
      }
    } catch (const Error& error) {
      const bool of_all = collective.kind != CollectiveKind::kReceive;
      if (of_all && error.code() == ErrorCode::kMismatch) AgreeOnCall(host_, collective);
      throw;
    }
  }

  void Check() override {}

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    host_.Barrier();
    return AllocateOnGpu(device_, bytes);
  }

 private:
  // A message that its receiver may not have taken yet.
  struct Sent {
    PinnedBlock memory;
    Work work;
  };

  // Throws the error of a send once.
  void EndSends() {
    for (auto sent = sent_.begin(); sent != sent_.end();) {
      bool done = false;
      try {
        done = sent->work.Test();
      } catch (const Error&) {
        sent_.erase(sent);
        throw;
      }
      sent = done ? sent_.erase(sent) : std::next(sent);
    }
  }

  void Synchronize(CUstream stream) {
    copied_.Record(stream);
    copied_.Synchronize();
  }

  void Send(const Collective& message, CUstream stream) {
    Sent& sent = sent_.emplace_back();
    sent.memory = PinnedBlock(device_, message.input.bytes());
    Collective on_host = message;
    on_host.input = OnHost(message.input, sent.memory);
    gpu::Copy(message.input, on_host.input, stream);
    Synchronize(stream);
    sent.work = host_.Start(on_host);
  }

  // Returns the same call with separate buffers in pinned memory. Enqueues the copy of the input
  // into them.
  Collective Stage(const Collective& collective, CUstream stream) {
    Collective on_host = collective;
    on_host.input = on_host.output = Buffer();
    if (UsesInput(collective, host_.rank())) {
      Grow(input_, collective.input.bytes());
      on_host.input = OnHost(collective.input, input_);
      gpu::Copy(collective.input, on_host.input, stream);
    }
    if (UsesOutput(collective, host_.rank())) {
      Grow(output_, collective.output.bytes());
      on_host.output = OnHost(collective.output, output_);
    }
    if (collective.kind == CollectiveKind::kBroadcast) {
      const bool is_root = UsesInput(collective, host_.rank());
      on_host.input = on_host.output = is_root ? on_host.input : on_host.output;
    }
    return on_host;
  }

  void Grow(PinnedBlock& memory, uint64_t bytes) {
    if (memory.bytes() < bytes) memory = PinnedBlock(device_, bytes);
  }

  static Buffer OnHost(const Buffer& buffer, const PinnedBlock& memory) {
    return Buffer(memory.data(), buffer.count, buffer.dtype);
  }

  void DoAtOnce(const Collective& collective, CUstream stream) {
    const Collective on_host = Stage(collective, stream);
    Synchronize(stream);
    host_.Start(on_host).Wait();
    if (UsesOutput(collective, host_.rank())) {
      gpu::Copy(on_host.output, collective.output, stream);
      copied_.Record(stream);
    }
  }

  void DoInChunks(const Collective& collective, uint64_t chunks, CUstream stream) {
    Grow(input_, ChunkBytes(chunk_bytes_, host_.size()));
    for (uint64_t k = 0; k < chunks; ++k) {
      const HostChunk chunk =
          MakeChunk(collective, host_.rank(), host_.size(), k, chunks, input_.data());
      for (const ChunkPart& part : chunk.in) {
        gpu::CopyToHost(
            part.on_host, gpu::AddressOf(part.on_gpu.data), part.on_gpu.bytes(), stream);
      }
      Synchronize(stream);  // also with the last chunk's way back
      host_.Start(chunk.on_host).Wait();
      for (const ChunkPart& part : chunk.out) {
        gpu::CopyToDevice(
            gpu::AddressOf(part.on_gpu.data), part.on_host, part.on_gpu.bytes(), stream);
      }
    }
    copied_.Record(stream);
  }

  Communicator& host_;
  const gpu::Device& device_;
  const uint64_t chunk_bytes_;
  gpu::Event copied_;           // after the last call's last copy
  PinnedBlock input_, output_;  // a call in chunks uses only input_
  std::list<Sent> sent_;
};

}  // namespace

std::unique_ptr<Memory> AllocateOnGpu(const gpu::Device& device, uint64_t bytes) {
  return std::make_unique<GpuMemory>(gpu::DeviceMemory(device, bytes));
}

void RefuseCapture(
    const gpu::Device& device, const Collective& collective, int rank, const char* backend) {
  const gpu::DeviceScope scope(device);
  if (!gpu::IsCapturing(static_cast<CUstream>(StreamOf(collective, rank)))) return;
  throw Error(
      ErrorCode::kUnavailable,
      base::Text(
          NameOf(collective.kind), ": the stream is being captured into a graph, of which ",
          backend, " cannot be a part"));
}

std::unique_ptr<DeviceGroup> CreateHostStagedGroup(
    Communicator& host, const gpu::Device& device, uint64_t chunk_bytes) {
  return std::make_unique<HostStagedGroup>(host, device, chunk_bytes);
}

namespace {

constexpr uint64_t kLeastStage = 4096;

struct Pool {
  std::mutex mutex;
  std::map<uint64_t, std::vector<gpu::PinnedMemory>> blocks;  // by size
};

// Never destroyed: the driver may be gone by then.
Pool& ThePool() {
  static auto* const pool = new Pool;
  return *pool;
}

}  // namespace

PinnedBlock::PinnedBlock(const gpu::Device& device, uint64_t bytes) {
  const uint64_t size = std::bit_ceil(std::max(bytes, kLeastStage));
  {
    Pool& pool = ThePool();
    std::lock_guard lock(pool.mutex);
    std::vector<gpu::PinnedMemory>& blocks = pool.blocks[size];
    if (!blocks.empty()) {
      memory_ = std::move(blocks.back());
      blocks.pop_back();
      return;
    }
  }
  memory_ = gpu::PinnedMemory(device, size);
}

PinnedBlock::~PinnedBlock() {
  if (memory_.bytes() == 0) return;
  Pool& pool = ThePool();
  std::lock_guard lock(pool.mutex);
  pool.blocks[memory_.bytes()].push_back(std::move(memory_));
}

PinnedBlock& PinnedBlock::operator=(PinnedBlock&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}

gpu::Kernels& collective_kernels =
    *new gpu::Kernels(dtrun_collectives, "the kernels of collectives");

ReduceArgs ReduceArgsOf(const Collective& collective, int size, int inputs) {
  if (inputs > kMostInputs)
    throw Error(
        ErrorCode::kUnavailable,
        base::Text(
            Describe(collective), ": dtrun computes it on GPUs for at most ", kMostInputs,
            " ranks, found ", inputs));
  ReduceArgs args = {};
  args.inputs = inputs;
  CountCombines(0, inputs, args.combines);
  args.op = static_cast<int32_t>(collective.op);
  args.divisor = collective.divisor == 0 ? size : collective.divisor;
  args.before = collective.scale.before;
  args.after = collective.scale.after;
  args.scaled = args.before != 1 || args.after != 1 ? 1 : 0;
  return args;
}

void EnqueueReduce(
    const gpu::Device& device, ReduceArgs args, const Buffer& result, CUstream stream) {
  constexpr uint32_t kThreads = 256, kMostBlocks = 4096;
  args.output = static_cast<char*>(result.data);
  args.count = result.count;
  collective_kernels.Launch(
      device, base::Text("dtrun_reduce_", NameOf(result.dtype)).c_str(),
      {.blocks = gpu::BlocksFor(result.count, kThreads, kMostBlocks), .threads = kThreads}, stream,
      args);
}

}  // namespace dtrun::ops::cuda

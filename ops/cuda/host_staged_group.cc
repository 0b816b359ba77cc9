#include "ops/cuda/host_staged_group.h"

#include <algorithm>
#include <list>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/communicator.h"

namespace dtrun::ops::cuda {
namespace {

class GpuMemory : public Memory {
 public:
  explicit GpuMemory(gpu::DeviceMemory memory)
      : Memory(memory.as<void>(), memory.bytes()), memory_(std::move(memory)) {}

 private:
  gpu::DeviceMemory memory_;
};

class HostStagedGroup : public DeviceGroup {
 public:
  HostStagedGroup(Communicator& host, const gpu::Device& device)
      : host_(host), device_(device), copied_(device) {}

  ~HostStagedGroup() override {
    copied_.Synchronize();
    for (Sent& sent : sent_) {
      try {
        sent.work.Wait();
      } catch (const Error&) {
        // The communicator has told of it, or will: here there is nobody to tell.
      }
    }
  }

  const char* backend() const override { return "host_staged"; }
  int device() const override { return device_.index(); }

  void Enqueue(const Collective& collective) override {
    const auto stream = static_cast<CUstream>(StreamOf(collective, host_.rank()));
    const gpu::DeviceScope scope(device_);
    if (gpu::IsCapturing(stream)) {
      throw Error(
          ErrorCode::kUnavailable, base::Text(
                                       NameOf(collective.kind),
                                       ": the stream is being captured into a graph, of which "
                                       "host_staged cannot be a part"));
    }
    sent_.remove_if([](Sent& sent) { return sent.work.Test(); });
    if (collective.kind == CollectiveKind::kSend) return Send(collective, stream);
    // What the last call copies back lies in the same memory.
    copied_.Synchronize();
    const Collective on_host = Stage(collective, stream);
    Synchronize(stream);
    host_.Start(on_host).Wait();
    if (UsesOutput(collective, host_.rank())) {
      const Buffer& output = collective.output;
      gpu::CopyToDevice(gpu::AddressOf(output.data), on_host.output.data, output.bytes(), stream);
      copied_.Record(stream);
    }
  }

  void Check() override {}

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    host_.Barrier();
    return std::make_unique<GpuMemory>(gpu::DeviceMemory(device_, bytes));
  }

 private:
  // A message whose receiver has not come.
  struct Sent {
    gpu::PinnedMemory memory;
    Work work;
  };

  void Synchronize(CUstream stream) {
    copied_.Record(stream);
    copied_.Synchronize();
  }

  void Send(const Collective& message, CUstream stream) {
    Sent& sent = sent_.emplace_back();
    sent.memory = gpu::PinnedMemory(device_, message.input.bytes());
    Collective on_host = message;
    on_host.input = OnHost(message.input, sent.memory);
    gpu::CopyToHost(
        on_host.input.data, gpu::AddressOf(message.input.data), message.input.bytes(), stream);
    Synchronize(stream);
    sent.work = host_.Start(on_host);
  }

  // The same call of buffers in pinned memory, apart from each other, into which the input is on
  // its way.
  Collective Stage(const Collective& collective, CUstream stream) {
    Collective on_host = collective;
    on_host.input = on_host.output = Buffer();
    if (UsesInput(collective, host_.rank())) {
      Grow(input_, collective.input.bytes());
      on_host.input = OnHost(collective.input, input_);
      gpu::CopyToHost(
          on_host.input.data, gpu::AddressOf(collective.input.data), collective.input.bytes(),
          stream);
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

  void Grow(gpu::PinnedMemory& memory, uint64_t bytes) {
    if (memory.bytes() < bytes) memory = gpu::PinnedMemory(device_, bytes);
  }

  static Buffer OnHost(const Buffer& buffer, const gpu::PinnedMemory& memory) {
    return Buffer(memory.as<void>(), buffer.count, buffer.dtype);
  }

  Communicator& host_;
  const gpu::Device& device_;
  gpu::Event copied_;
  gpu::PinnedMemory input_, output_;
  std::list<Sent> sent_;
};

}  // namespace

std::string WhyNotHostStaged(Communicator&, const gpu::Device&) { return ""; }

std::unique_ptr<DeviceGroup> CreateHostStagedGroup(Communicator& host, const gpu::Device& device) {
  return std::make_unique<HostStagedGroup>(host, device);
}

}  // namespace dtrun::ops::cuda

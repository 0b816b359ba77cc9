#include "tests/ops/cuda/device_ranks.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "gpu/driver.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"

namespace dtrun::testing {
namespace {

// The bytes of the guards around the suite's buffers.
constexpr uint64_t kAround = 48;

// Host memory from Allocate, and its twin on the GPU.
struct Block {
  std::unique_ptr<char[]> host;
  uint64_t bytes = 0;
  std::unique_ptr<ops::Memory> twin;
};

// Memory from a single allocation. Freeing GPU memory waits for all work of the process on the GPU.
// That includes kernels of other ranks, which wait for kernels of this rank.
class Ring {
 public:
  explicit Ring(const gpu::Device& device) : memory_(device, kBytes) {}
  CUdeviceptr Take(uint64_t bytes) {
    if (used_ + bytes > kBytes) used_ = 0;
    const CUdeviceptr taken = memory_.address() + used_;
    used_ += (bytes + 15) / 16 * 16;
    return taken;
  }

 private:
  static constexpr uint64_t kBytes = 24 << 20;  // more than all operations in flight need

  gpu::DeviceMemory memory_;
  uint64_t used_ = 0;
};

struct Context {
  Context(ops::Communicator& communicator_in, int index)
      : communicator(communicator_in),
        device(gpu::Device::Get(index)),
        stream(std::make_shared<gpu::Stream>(device)),
        ring(device) {}

  ops::Communicator& communicator;
  const gpu::Device& device;
  std::shared_ptr<gpu::Stream> stream;  // for collectives
  Ring ring;
  std::map<char*, std::weak_ptr<Block>> blocks;
};

// The copy of host bytes [begin, end) on the GPU, during an operation.
class Mirror {
 public:
  Mirror(Context& context, CUstream stream, char* begin, char* end)
      : stream_(stream), begin_(begin), bytes_(static_cast<uint64_t>(end - begin)) {
    for (const auto& [host, weak] : context.blocks) {
      const std::shared_ptr<Block> block = weak.lock();
      if (block == nullptr || begin < host || begin >= host + block->bytes) continue;
      block_ = block;
      at_ = gpu::AddressOf(block->twin->data()) + static_cast<uint64_t>(begin - host);
      before_ = std::min<uint64_t>(kAround, static_cast<uint64_t>(begin - host));
      after_ = std::min<uint64_t>(kAround, block->bytes - static_cast<uint64_t>(end - host));
    }
    if (block_ == nullptr) {
      // The address has the same alignment as on the host.
      at_ = context.ring.Take(bytes_ + 16) + reinterpret_cast<uint64_t>(begin) % 16;
    }
    gpu::CopyToDevice(at_ - before_, begin_ - before_, before_ + bytes_ + after_, stream_);
  }

  bool Holds(const void* data) const { return data >= begin_ && data < begin_ + bytes_; }
  char* Twin(const void* data) const {
    const auto offset = static_cast<uint64_t>(static_cast<const char*>(data) - begin_);
    return reinterpret_cast<char*>(at_ + offset);
  }
  void Return() {
    gpu::CopyToHost(begin_ - before_, at_ - before_, before_ + bytes_ + after_, stream_);
  }

 private:
  CUstream stream_;
  char* begin_;
  uint64_t bytes_, before_ = 0, after_ = 0;
  std::shared_ptr<Block> block_;
  CUdeviceptr at_ = 0;
};

// The mirrors of an operation's buffers. Buffers that overlap share a mirror.
class Mirrors {
 public:
  Mirrors(Context& context, const gpu::Stream& stream, const Buffer& input, const Buffer& output)
      : context_(context), stream_(stream) {
    char *a = Begin(input), *b = Begin(output);
    char *a_end = a + input.bytes(), *b_end = b + output.bytes();
    if (a != a_end && b != b_end && a < b_end && b < a_end) {
      Add(std::min(a, b), std::max(a_end, b_end));
    } else {
      Add(a, a_end);
      Add(b, b_end);
    }
  }
  Buffer Of(Buffer buffer) const {
    for (const auto& mirror : mirrors_) {
      if (mirror->Holds(buffer.data)) {
        buffer.data = mirror->Twin(buffer.data);
        break;
      }
    }
    buffer.device = context_.device.index();
    buffer.stream = stream_.get();
    return buffer;
  }
  void Return() {
    for (const auto& mirror : mirrors_) mirror->Return();
  }

 private:
  static char* Begin(const Buffer& buffer) { return static_cast<char*>(buffer.data); }
  void Add(char* begin, char* end) {
    if (begin != end)
      mirrors_.push_back(std::make_unique<Mirror>(context_, stream_.get(), begin, end));
  }

  Context& context_;
  const gpu::Stream& stream_;
  std::vector<std::unique_ptr<Mirror>> mirrors_;
};

class DeviceStarted : public Started {
 public:
  DeviceStarted(
      std::shared_ptr<Context> context, std::shared_ptr<gpu::Stream> stream,
      std::unique_ptr<Mirrors> mirrors)
      : context_(std::move(context)), stream_(std::move(stream)), mirrors_(std::move(mirrors)) {}

  bool Test() override {
    const gpu::DeviceScope scope(context_->device);
    return gpu::Driver::Get().cuStreamQuery(stream_->get()) == CUDA_SUCCESS;
  }
  void Wait() override {
    const gpu::DeviceScope scope(context_->device);
    stream_->Synchronize();
    context_->communicator.CheckDevice();
    if (mirrors_ == nullptr) return;
    mirrors_->Return();
    stream_->Synchronize();
    mirrors_ = nullptr;
  }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<gpu::Stream> stream_;
  std::unique_ptr<Mirrors> mirrors_;
};

ops::CollectiveKind KindOf(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return ops::CollectiveKind::kAllReduce;
    case Kind::kReduceScatter: return ops::CollectiveKind::kReduceScatter;
    case Kind::kReduce: return ops::CollectiveKind::kReduce;
    case Kind::kBroadcast: return ops::CollectiveKind::kBroadcast;
    case Kind::kAllGather: return ops::CollectiveKind::kAllGather;
    case Kind::kAllToAll: return ops::CollectiveKind::kAllToAll;
    case Kind::kGather: return ops::CollectiveKind::kGather;
    case Kind::kScatter: return ops::CollectiveKind::kScatter;
  }
  return ops::CollectiveKind::kBarrier;
}

class DeviceRanks : public Ranks {
 public:
  DeviceRanks(ops::Communicator& communicator, int device)
      : context_(std::make_shared<Context>(communicator, device)) {}
  DeviceRanks(std::unique_ptr<ops::Communicator> owned, int device) : DeviceRanks(*owned, device) {
    owned_ = std::move(owned);
  }
  // Destroys the blocks and the stream before the communicator that made them.
  ~DeviceRanks() override { context_ = nullptr; }

  int rank() const override { return communicator().rank(); }
  int size() const override { return communicator().size(); }

  std::unique_ptr<Started> Start(const Operation& o) override {
    const gpu::DeviceScope scope(context_->device);
    ops::Collective collective;
    collective.kind = KindOf(o.kind);
    collective.op = o.op;
    collective.scale = o.scale;
    collective.root = o.root;
    collective.send_counts = o.send_counts;
    collective.receive_counts = o.receive_counts;
    Buffer input = o.input, output = o.output;
    if (o.kind == Kind::kBroadcast) {
      input = output = rank() == o.root ? o.input : o.output;
    }
    auto mirrors = std::make_unique<Mirrors>(*context_, *context_->stream, input, output);
    collective.input = mirrors->Of(input);
    collective.output = mirrors->Of(output);
    communicator().Start(collective);
    return std::make_unique<DeviceStarted>(context_, context_->stream, std::move(mirrors));
  }
  std::unique_ptr<Started> StartBarrier() override {
    ops::Collective barrier;
    barrier.input.device = context_->device.index();
    barrier.input.stream = context_->stream->get();
    communicator().Start(barrier);
    return std::make_unique<DeviceStarted>(context_, context_->stream, nullptr);
  }
  std::unique_ptr<Started> StartSend(Buffer buffer, int peer) override {
    return StartMessage(ops::CollectiveKind::kSend, buffer, peer);
  }
  std::unique_ptr<Started> StartReceive(Buffer buffer, int peer) override {
    return StartMessage(ops::CollectiveKind::kReceive, buffer, peer);
  }

  std::shared_ptr<void> Allocate(uint64_t bytes) override {
    auto block = std::make_shared<Block>();
    block->host = std::make_unique<char[]>(bytes);
    block->bytes = bytes;
    block->twin = communicator().AllocateOnDevice(context_->device.index(), bytes);
    context_->blocks[block->host.get()] = block;
    return {block, block->host.get()};
  }
  std::unique_ptr<Ranks> Duplicate() override { return Own(communicator().Duplicate()); }
  std::unique_ptr<Ranks> Split(int colour, int key) override {
    return Own(communicator().Split(colour, key));
  }
  std::unique_ptr<Ranks> Subset(const std::vector<int>& ranks) override {
    return Own(communicator().Subset(ranks));
  }

 private:
  ops::Communicator& communicator() const { return context_->communicator; }

  std::unique_ptr<Started> StartMessage(ops::CollectiveKind kind, Buffer buffer, int peer) {
    const gpu::DeviceScope scope(context_->device);
    // A message blocks its stream until the peer has made its call.
    const auto stream = std::make_shared<gpu::Stream>(context_->device);
    auto mirrors = std::make_unique<Mirrors>(*context_, *stream, buffer, Buffer());
    ops::Collective message;
    message.kind = kind;
    message.root = peer;
    message.input = message.output = mirrors->Of(buffer);
    communicator().Start(message);
    return std::make_unique<DeviceStarted>(context_, stream, std::move(mirrors));
  }

  std::unique_ptr<Ranks> Own(std::unique_ptr<ops::Communicator> communicator) {
    if (communicator == nullptr) return nullptr;
    // Makes the group now, because the ranks wait for each other here. In the suite, each rank
    // calls in its own order.
    communicator->device_group(context_->device.index());
    return std::make_unique<DeviceRanks>(std::move(communicator), context_->device.index());
  }

  std::unique_ptr<ops::Communicator> owned_;
  std::shared_ptr<Context> context_;
};

}  // namespace

std::unique_ptr<Ranks> OverDevice(ops::Communicator& communicator, int device) {
  return std::make_unique<DeviceRanks>(communicator, device);
}

}  // namespace dtrun::testing

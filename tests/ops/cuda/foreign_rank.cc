// A rank, as a process under dtrun, that allocates its own GPU memory (with cuMemAlloc, like
// cudaMalloc). The argument names the test. Each rank prints the checks that fail and the obstacles
// to registration.

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/job/job_context.h"

namespace {

using dtrun::Buffer;
using dtrun::ReduceOp;
using dtrun::base::Text;
using dtrun::ops::Communicator;
namespace gpu = dtrun::gpu;

constexpr uint64_t kCount = 1 << 20;  // f32: too large to be staged, and whole pages
constexpr uint64_t kBytes = kCount * sizeof(float);

int unmet = 0;

void Expect(bool holds, const std::string& what) {
  if (holds) return;
  ++unmet;
  std::printf("not so: %s\n", what.c_str());
}

// A rank and its stream, with access to GPU memory from the host.
class Rank {
 public:
  explicit Rank(Communicator& world)
      : world_(world), device_(gpu::Device::Get(0)), stream_(device_) {
    world.device_group(0);
  }

  Communicator& world() const { return world_; }
  int rank() const { return world_.rank(); }
  const gpu::Device& device() const { return device_; }
  const gpu::Stream& stream() const { return stream_; }

  gpu::DeviceMemory Allocate() const { return gpu::DeviceMemory(device_, kBytes); }
  dtrun::ops::DeviceGroup::Registration Register(
      void* data, uint64_t bytes, Communicator* communicator = nullptr) const {
    return (communicator == nullptr ? world_ : *communicator).device_group(0).Register(data, bytes);
  }
  Buffer On(void* data, uint64_t count = kCount) const {
    Buffer buffer(data, count, dtrun::DType::kF32);
    buffer.device = 0;
    buffer.stream = stream_.get();
    return buffer;
  }
  // Values with sums that need rounding, so another order gives other bits.
  std::vector<float> Values(int rank) const {
    std::vector<float> values(kCount);
    for (uint64_t i = 0; i < kCount; ++i)
      values[i] = static_cast<float>(i % 1009 + 1) / static_cast<float>(3 + rank * 7);
    return values;
  }
  void Write(void* to, const std::vector<float>& values) const {
    const gpu::DeviceScope scope(device_);
    gpu::CopyToDevice(gpu::AddressOf(to), values.data(), values.size() * 4, stream_.get());
    stream_.Synchronize();
  }
  std::vector<float> Read(const void* from) const {
    std::vector<float> values(kCount);
    const gpu::DeviceScope scope(device_);
    gpu::CopyToHost(values.data(), gpu::AddressOf(from), kBytes, stream_.get());
    stream_.Synchronize();
    world_.CheckDevice();
    return values;
  }
  std::vector<float> SumIn(void* data) const {
    Write(data, Values(rank()));
    world_.StartAllReduce(On(data), ReduceOp::kSum);
    return Read(data);
  }
  // Sums in memory that is not registered, so in rounds through staging memory.
  std::vector<float> SumInRounds() const {
    const gpu::DeviceMemory memory = Allocate();
    return SumIn(memory.as<void>());
  }
  // Expects that the other ranks read a broadcast of rank `root` in place. The root protects its
  // memory during the broadcast, which stops only its own process from reading. Only for the
  // simulated GPU: there, a copy to staging memory would end the process.
  void ExpectReadInPlace(void* data, int root, const std::string& what) const {
    Write(data, Values(rank()));
    const bool hides = rank() == root;
    if (hides) Expect(::mprotect(data, kBytes, PROT_NONE) == 0, "mprotect");
    world_.StartBroadcast(On(data), root);
    stream_.Synchronize();
    if (hides) Expect(::mprotect(data, kBytes, PROT_READ | PROT_WRITE) == 0, "mprotect");
    Expect(Read(data) == Values(root), what);
  }

 private:
  Communicator& world_;
  const gpu::Device& device_;
  gpu::Stream stream_;
};

void TellObstacle(const Rank& rank, const std::string& obstacle) {
  for (int turn = 0; turn < rank.world().size(); ++turn) {
    if (turn == rank.rank()) std::printf("%s\n", obstacle.c_str());
    std::fflush(stdout);
    rank.world().Barrier();
  }
}

void InPlace(const Rank& rank) {
  const gpu::DeviceMemory memory = rank.Allocate();
  const std::vector<float> sum = rank.SumInRounds();
  {
    const auto registration = rank.Register(memory.as<void>(), kBytes);
    Expect(registration.obstacle == "", registration.obstacle);
    Expect(rank.SumIn(memory.as<void>()) == sum, "the bits of rounds");
    for (int root = 0; root < rank.world().size(); ++root)
      rank.ExpectReadInPlace(memory.as<void>(), root, Text("rank ", root, "'s in place"));
  }
  Expect(rank.SumIn(memory.as<void>()) == sum, "the bits, no longer registered");
}

// Peers map only the registered part of an allocation.
void Parts(const Rank& rank) {
  const gpu::DeviceMemory memory(rank.device(), 3 * kBytes);
  char* const middle = memory.as<char>() + kBytes;
  const auto registration = rank.Register(middle, kBytes);
  const std::vector<float> sum = rank.SumInRounds();
  Expect(rank.SumIn(middle) == sum, "in the middle");
  Expect(rank.SumIn(middle + kBytes / 2) == sum, "half of it beyond");
  Expect(rank.SumIn(memory.as<void>()) == sum, "before it");
}

void Again(const Rank& rank) {
  auto memory = std::make_unique<gpu::DeviceMemory>(rank.Allocate());
  const CUdeviceptr before = memory->address();
  const std::vector<float> sum = rank.SumInRounds();
  {
    const auto registration = rank.Register(memory->as<void>(), kBytes);
    Expect(rank.SumIn(memory->as<void>()) == sum, "before it was freed");
    rank.world().Barrier();
    // Rank 0 frees the memory while it is still registered.
    if (rank.rank() == 0) {
      memory = nullptr;
      memory = std::make_unique<gpu::DeviceMemory>(rank.Allocate());
      Expect(memory->address() == before, "at the same address");
    }
    rank.world().Barrier();
    Expect(rank.SumIn(memory->as<void>()) == sum, "taken again");
  }
  rank.world().Barrier();
  const auto registration = rank.Register(memory->as<void>(), kBytes);
  Expect(registration.obstacle == "", registration.obstacle);
  Expect(rank.SumIn(memory->as<void>()) == sum, "registered again");
  rank.ExpectReadInPlace(memory->as<void>(), 0, "the new allocation in place");
}

// Rank 0 has memory from the communicator, the others have their own.
void Mixed(const Rank& rank) {
  const bool own = rank.rank() != 0;
  const auto allocated = rank.world().AllocateOnDevice(0, own ? 0 : kBytes);
  const gpu::DeviceMemory memory = rank.Allocate();
  const auto registration = rank.Register(memory.as<void>(), own ? kBytes : 0);
  Expect(registration.obstacle == "", registration.obstacle);
  void* const data = own ? memory.as<void>() : allocated->data();
  Expect(rank.SumIn(data) == rank.SumInRounds(), "the bits");
  rank.ExpectReadInPlace(data, 0, "rank 0's, which all map");
  rank.ExpectReadInPlace(data, 1, "rank 1's, which is registered");
}

// The memory of rank 1 is of a kind without IPC handles.
void WithoutHandle(const Rank& rank) {
  const auto other = rank.world().Duplicate();
  const auto mapped = other->AllocateOnDevice(0, kBytes);
  const gpu::DeviceMemory memory = rank.Allocate();
  void* const data = rank.rank() == 1 ? mapped->data() : memory.as<void>();
  const auto registration = rank.Register(data, kBytes);
  TellObstacle(rank, registration.obstacle);
  Expect(rank.SumIn(data) == rank.SumInRounds(), "the bits");
}

void Refused(const Rank& rank) {
  if (rank.rank() == 1) ::setenv("DTRUN_SIMULATED_IPC", "0", 1);
  const gpu::DeviceMemory memory = rank.Allocate();
  const auto registration = rank.Register(memory.as<void>(), kBytes);
  TellObstacle(rank, registration.obstacle);
  Expect(rank.SumIn(memory.as<void>()) == rank.SumInRounds(), "the bits");
}

void Small(const Rank& rank) {
  const gpu::DeviceMemory memory(rank.device(), 1 << 20);
  const auto registration = rank.Register(memory.as<void>(), 1 << 20);
  TellObstacle(rank, registration.obstacle);
}

std::string RefusalOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const dtrun::Error& error) {
    return Text(
        error.code() == dtrun::ErrorCode::kInvalidArgument ? "" : "not an argument: ",
        error.what());
  }
  return "";
}

// All ranks get the error of one rank.
void Wrong(const Rank& rank) {
  const gpu::DeviceMemory memory = rank.Allocate();
  char* const data = memory.as<char>();
  std::vector<char> host(64);
  const bool errs = rank.rank() == 1;
  const std::string on_host = RefusalOf([&] { rank.Register(errs ? host.data() : data, 64); });
  const std::string beyond = RefusalOf([&] { rank.Register(data, kBytes + (errs ? 1 : 0)); });
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
  };
  Expect(on_host.find("rank 1: register: 64 bytes at 0x") == 0, on_host);
  Expect(ends_with(on_host, " do not lie on a GPU; expected memory of GPU 0"), on_host);
  Expect(beyond.find("rank 1: register: 4194305 bytes at 0x") == 0, beyond);
  Expect(
      ends_with(beyond, " reach 1 bytes beyond what was allocated; expected memory of GPU 0"),
      beyond);
  Expect(rank.SumIn(data) == rank.SumInRounds(), "the group goes on");
}

// A driver may open a handle once only.
void Communicators(const Rank& rank) {
  const auto other = rank.world().Duplicate();
  const gpu::DeviceMemory memory = rank.Allocate();
  const std::vector<float> sum = rank.SumInRounds();
  {
    const auto first = rank.Register(memory.as<void>(), kBytes / 2);
    const auto second = rank.Register(memory.as<void>(), kBytes);
    const auto third = rank.Register(memory.as<void>(), kBytes, other.get());
    Expect(first.obstacle + second.obstacle + third.obstacle == "", "no obstacle");
    Expect(rank.SumIn(memory.as<void>()) == sum, "in one communicator");
    rank.Write(memory.as<void>(), rank.Values(rank.rank()));
    other->StartAllReduce(rank.On(memory.as<void>()), ReduceOp::kSum);
    Expect(rank.Read(memory.as<void>()) == sum, "in the other one");
  }
  const auto again = rank.Register(memory.as<void>(), kBytes);
  Expect(again.obstacle == "", again.obstacle);
  Expect(rank.SumIn(memory.as<void>()) == sum, "once more");
}

void Graph(const Rank& rank) {
  const gpu::DeviceMemory memory = rank.Allocate();
  const auto registration = rank.Register(memory.as<void>(), kBytes);
  rank.Write(memory.as<void>(), std::vector<float>(kCount, 1));
  {
    const gpu::Graph graph(rank.stream(), [&] {
      rank.world().StartAllReduce(rank.On(memory.as<void>()), ReduceOp::kSum);
    });
    for (int i = 0; i < 3; ++i) graph.Launch(rank.stream().get());
  }
  const auto p = static_cast<float>(rank.world().size());
  Expect(rank.Read(memory.as<void>()) == std::vector<float>(kCount, p * p * p), "three sums");
}

// More registrations than there are numbers for them. One registration stays throughout.
void Often(const Rank& rank) {
  const gpu::DeviceMemory memory = rank.Allocate(), other = rank.Allocate();
  const auto kept = rank.Register(memory.as<void>(), kBytes);
  for (int i = 0; i < 1100; ++i) rank.Register(other.as<void>(), kBytes);
  const auto last = rank.Register(other.as<void>(), kBytes);
  const auto allocated = rank.world().AllocateOnDevice(0, kBytes);
  const std::vector<float> sum = rank.SumInRounds();
  for (void* data : {memory.as<void>(), other.as<void>(), allocated->data()})
    Expect(rank.SumIn(data) == sum, "the bits");
  rank.ExpectReadInPlace(memory.as<void>(), 0, "the one that stayed");
  rank.ExpectReadInPlace(other.as<void>(), 1, "the last one");
}

// The tests that run on a real GPU too.
void AnyGpu(const Rank& rank) {
  Parts(rank);
  rank.world().Barrier();
  Wrong(rank);
  Communicators(rank);
  rank.world().Barrier();
  Graph(rank);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const Rank&)> stories = {
      {"in_place", InPlace}, {"parts", Parts}, {"again", Again},
      {"mixed", Mixed},      {"small", Small}, {"without_handle", WithoutHandle},
      {"refused", Refused},  {"wrong", Wrong}, {"communicators", Communicators},
      {"graph", Graph},      {"often", Often}, {"any_gpu", AnyGpu},
  };
  try {
    const auto get = [](const std::string& name) -> std::optional<std::string> {
      const char* value = std::getenv(name.c_str());
      return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    };
    dtrun::runtime::Context context(get, {});
    stories.at(argc > 1 ? argv[1] : "")(Rank(context.world()));
    context.world().Barrier();
    context.Shutdown();
    return unmet == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}

// Stories of torch_ranks.cc about the memory of large tensors.

#include <c10/core/CPUAllocator.h>
#include <dtrun/torch.h>
#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/torch/stories.h"

namespace {

using namespace torch_stories;
using dtrun::torch::internal::Arena;

constexpr int64_t kMiB = 1 << 20;

Tensor Make(int64_t bytes) { return torch::empty({bytes}, torch::kUInt8); }

// A trainer of one small parameter. dtrun keeps freed memory as long as the trainer lives.
struct Trainer {
  explicit Trainer(Communicator& world, bool reuse = true)
      : w(torch::ones({3}, torch::requires_grad())), optimizer(world, Sgd(w), Options(reuse)) {}

  static std::unique_ptr<torch::optim::SGD> Sgd(const Tensor& w) {
    return std::make_unique<torch::optim::SGD>(std::vector<Tensor>{w}, 0.1);
  }
  static DistributedOptions Options(bool reuse) {
    DistributedOptions options;
    options.reuse_memory = reuse;
    return options;
  }

  Tensor w;
  DistributedOptimizer optimizer;
};

int64_t FaultsOf(const std::function<void()>& call) {
  const auto count = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  const int64_t before = count();
  call();
  return count() - before;
}

void Reused(Communicator& world) {
  Net net = MakeNet();
  const auto trained = [&](bool reuse) {
    const Trainer keeper(world, reuse);
    const auto step = [&] {
      net->zero_grad();
      const Batch batch{torch::ones({65536, 1, 8, 8}), torch::zeros({65536}, torch::kInt64)};
      batch.Loss(net).backward();
    };
    for (int i = 0; i < 3; ++i) step();
    return FaultsOf([&] {
      for (int i = 0; i < 5; ++i) step();
    });
  };
  const int64_t reusing = trained(true);
  Expect(reusing < 500, "steps take no new pages; " + std::to_string(reusing) + " faults");
  Arena& arena = Arena::OfProcess();
  Expect(arena.kept_bytes() == 0, "what was kept goes back with the last optimizer");
  Expect(arena.taken_bytes() == 0, "no tensor is left");

  const Trainer keeper(world, false);
  { const Tensor tensor = Make(8 * kMiB); }
  Expect(arena.kept_bytes() == 0, "without reuse_memory nothing is kept");
}

// No two living tensors share memory.
void Own(Communicator& world) {
  const Trainer keeper(world);
  torch::manual_seed(3);
  std::vector<Tensor> tensors(24);
  const auto expect_whole = [](const Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto* bytes = static_cast<const uint8_t*>(tensor.data_ptr());
    Expect(reinterpret_cast<uintptr_t>(bytes) % 64 == 0, "memory is aligned to 64 bytes");
    Expect(
        torch::equal(tensor, torch::full({tensor.numel()}, bytes[0], torch::kUInt8)),
        "nobody else has written to a tensor");
  };
  for (int i = 0; i < 400; ++i) {
    const auto which = static_cast<size_t>(torch::randint(24, {1}).item<int64_t>());
    expect_whole(tensors[which]);
    const int64_t bytes = torch::randint(kMiB / 8, 3 * kMiB, {1}).item<int64_t>();
    tensors[which] = i % 5 == 0 ? Tensor() : Make(bytes).fill_(i % 251);
  }
  for (const Tensor& tensor : tensors) expect_whole(tensor);
  tensors.clear();
  Expect(Arena::OfProcess().taken_bytes() == 0, "all is free");
  // Adjacent free ranges are merged.
  void* const first = Make(5 * kMiB).data_ptr();
  Expect(Make(30 * kMiB).data_ptr() == first, "the lowest addresses are taken first");
}

// Kept memory stays bounded although the size of tensors changes in every step.
void Bounded(Communicator& world) {
  const Trainer keeper(world);
  Arena& arena = Arena::OfProcess();
  const size_t before = arena.taken_bytes();
  size_t most = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const Tensor a = Make((100 + i) * kMiB), b = Make(40 * kMiB + i * kMiB / 2);
    most = std::max(most, arena.taken_bytes() - before);
    const size_t all = arena.taken_bytes() - before + arena.kept_bytes();
    Expect(
        all <= most + most / 4 + Arena::kSpare,
        "kept and in use: " + std::to_string(all) + " of " + std::to_string(most) + " bytes");
  }
}

// Tensors that are freed on another thread, freed after the optimizer, or made before the
// optimizer.
void Freed(Communicator& world) {
  Tensor before = Make(3 * kMiB), later;
  {
    const Trainer keeper(world);
    later = Make(5 * kMiB);
    before = Tensor();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        std::vector<Tensor> mine;
        for (int i = 0; i < 200; ++i) {
          mine.push_back(Make((i % 7 + 1) * kMiB / 2));
          mine.back()[0] = i % 7;
          if (mine.size() > 5) mine.erase(mine.begin());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  later.fill_(1);
  Expect(later.sum().item<int64_t>() == 5 * kMiB, "a tensor outlives the optimizer");
  later = Tensor();
  Expect(Arena::OfProcess().taken_bytes() == 0, "and then its memory goes back");
}

// LibTorch allocates scratch memory without a tensor and frees it by its address.
void Raw(Communicator& world) {
  Tensor w = torch::ones({kMiB}, torch::requires_grad());
  DistributedOptions alone;
  alone.bucket_bytes = alone.first_bucket_bytes = 1024;
  DistributedOptimizer optimizer(world, Trainer::Sgd(w), alone);
  optimizer.zero_grad(true);
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  torch::NoGradGuard backward;
  // The first size is that of a gradient, for which dtrun has a place.
  for (const size_t bytes : {4 * kMiB, 2 * kMiB, 100 * kMiB, int64_t{100}}) {
    std::vector<void*> all;
    for (int i = 0; i < 3; ++i) {
      all.push_back(allocator.raw_allocate(bytes));
      static_cast<char*>(all.back())[bytes - 1] = 1;
    }
    for (void* one : all) allocator.raw_deallocate(one);
  }
}

}  // namespace

torch_stories::Stories torch_stories::MemoryStories() {
  return {
      {"reused", Reused}, {"own", Own}, {"bounded", Bounded}, {"freed", Freed}, {"raw", Raw},
  };
}

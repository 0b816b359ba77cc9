// Batches made ahead: bounded, errors at the consumer, nothing left behind, nothing allocated.

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "models/data/pipeline.h"
#include "tests/models/data/pipeline_rig.h"

namespace {
std::atomic<uint64_t> g_allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace dtrun::models {
namespace {

size_t Threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

// Waits until a number is reached.
class Counter {
 public:
  void Add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void WaitFor(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

MapFunction Counting(Counter& counter) {
  return [&counter](const MapCall& call) {
    *call.output = *call.input;
    counter.Add();
  };
}

TEST_CASE("as many batches are made ahead as was said, across the end of an epoch, and no more") {
  Counter made;
  {
    Iterator iterator(Numbers(4).Map(Counting(made)).Batch(1).Prefetch(3));
    CHECK(iterator.Next() != nullptr);
    // The one in use, and three ahead. Nothing tells that no fourth is on its way, but the next
    // call of Next would come too late for it: it is the call that makes room.
    made.WaitFor(4);
    CHECK(made.count() == 4);
    for (int i = 0; i < 3; ++i) CHECK(iterator.Next() != nullptr);
    made.WaitFor(6);  // the end of the epoch is ahead, and two of the next one
    CHECK(made.count() == 6);
  }
  CHECK(made.count() <= 7);
}

TEST_CASE("the thread ends with its iterator, whatever it is doing") {
  const size_t before = Threads();
  Counter entered, leave;
  {
    Iterator waiting(Numbers(9).Batch(1).Prefetch(2));
    waiting.Next();
    Iterator unused(Numbers(9).Batch(1).Prefetch(2));
    Iterator moved = std::move(waiting);
    CHECK(moved.Next() != nullptr);
    CHECK(Threads() == before + 1);
  }
  CHECK(Threads() == before);
}

TEST_CASE(
    "what a function throws in the thread arrives at its batch, and the batch is tried again") {
  for (const bool ahead : {false, true}) {
    std::atomic<int> failures{2};
    const Pipeline plain = Numbers(6)
                               .Map([&](const MapCall& call) {
                                 *call.output = *call.input;
                                 if (call.example == 3 && failures-- > 0)
                                   throw std::runtime_error("example 3 is bad");
                               })
                               .Batch(2);
    Iterator iterator(ahead ? plain.Prefetch(2) : plain);
    CHECK(LabelsOf(*iterator.Next()) == Ids{0, 1});
    for (int i = 0; i < 2; ++i) {
      CHECK_THROWS_WITH(iterator.Next(), "example 3 is bad");
      CHECK(iterator.position() == Position{0, 1});
    }
    CHECK(RestOfEpoch(iterator) == std::vector<Ids>{{2, 3}, {4, 5}});
  }
}

TEST_CASE("an iterator with an error that nobody has seen is destroyed in good order") {
  Counter thrown;
  {
    Iterator iterator(Numbers(4)
                          .Map([&](const MapCall& call) {
                            if (call.example == 2) {
                              thrown.Add();
                              throw std::runtime_error("bad");
                            }
                          })
                          .Batch(1)
                          .Prefetch(3));
    iterator.Next();
    thrown.WaitFor(1);
  }
  CHECK(thrown.count() == 1);
}

TEST_CASE("the seconds that a consumer waits are counted") {
  Iterator iterator(Numbers(4).Batch(2).Prefetch(1));
  CHECK(iterator.wait_seconds() == 0);
  iterator.Next();
  const double first = iterator.wait_seconds();
  CHECK(first > 0);
  iterator.Next();
  CHECK(iterator.wait_seconds() > first);
}

TEST_CASE("after the first epochs nothing is allocated any more") {
  const Pipeline bytes =
      Pipeline::FromMemory({50, 4, 4}, std::vector<uint8_t>(800), Ids(50)).Shuffle({}).Batch(8);
  const Pipeline mapped = Numbers(50)
                              .Shuffle({.buffer = 9})
                              .Cache()
                              .Shuffle({})
                              .Map(Normalize({0.5f}, {0.25f}))
                              .Repeat(2)
                              .Batch(8)
                              .Skip(1);
  for (const Pipeline& plain : {bytes, mapped}) {
    for (const Pipeline& pipeline : {plain, plain.Prefetch(2)}) {
      INFO(pipeline.description());
      Iterator iterator(pipeline);
      const auto run_epoch = [&] {
        float sum = 0;
        while (const Batch* batch = iterator.Next()) sum += batch->inputs()[0];
        return sum;
      };
      for (int epoch = 0; epoch < 8; ++epoch) run_epoch();  // every slot has seen a full batch
      const uint64_t before = g_allocations;
      for (int epoch = 0; epoch < 3; ++epoch) run_epoch();
      CHECK(g_allocations - before == 0);
    }
  }
}

}  // namespace
}  // namespace dtrun::models

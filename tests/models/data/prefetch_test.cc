// Prefetched batches: the limit, errors at the consumer, the end of the thread, and no allocations.

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
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
// Catch uses it. Sanitizers demand that what `delete` frees comes from here.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++g_allocations;
  return std::malloc(bytes);
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

// A counter that a thread can wait for.
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

TEST_CASE("Prefetch makes exactly the requested number of batches ahead across epochs") {
  Counter made;
  {
    Iterator iterator(Numbers(4).Map(Counting(made)).Batch(1).Prefetch(3));
    CHECK(iterator.Next() != nullptr);
    // One batch is in use and three are ahead. Only the next call of Next makes room for another
    // batch. The check may miss a surplus batch that is still being made.
    made.WaitFor(4);
    CHECK(made.count() == 4);
    for (int i = 0; i < 3; ++i) CHECK(iterator.Next() != nullptr);
    made.WaitFor(6);  // ahead: the end of the epoch and two batches of the next epoch
    CHECK(made.count() == 6);
  }
  CHECK(made.count() <= 7);
}

TEST_CASE("a prefetch thread ends with its iterator and an unused iterator has no thread") {
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
  // The kernel lists a joined thread for a moment longer.
  for (int tries = 0; Threads() != before && tries < 1000; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(Threads() == before);
}

TEST_CASE(
    "an error of a map is thrown at its batch with and without prefetch and the batch is tried "
    "again") {
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

TEST_CASE("an iterator with an error that the consumer has not seen is destroyed cleanly") {
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

TEST_CASE("wait_seconds counts the time that the consumer waits for batches") {
  Iterator iterator(Numbers(4).Batch(2).Prefetch(1));
  CHECK(iterator.wait_seconds() == 0);
  iterator.Next();
  const double first = iterator.wait_seconds();
  CHECK(first > 0);
  iterator.Next();
  CHECK(iterator.wait_seconds() > first);
}

TEST_CASE("after the first epochs an iterator allocates no memory") {
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
      for (int epoch = 0; epoch < 8; ++epoch) run_epoch();  // every slot held a full batch
      const uint64_t before = g_allocations;
      for (int epoch = 0; epoch < 3; ++epoch) run_epoch();
      CHECK(g_allocations - before == 0);
    }
  }
}

}  // namespace
}  // namespace dtrun::models

// The threads of a block are fibers. A stream takes a spare block with its fibers. A thread that
// waits for other threads of its block is skipped until they arrive.

#include "tests/gpu_simulator/block.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_simulator/fiber.h"

namespace dtrun::gpu_simulator {
namespace {

constexpr unsigned kWarp = 32;

// A barrier of threads: the threads that have come, the threads that still run, and the number of
// completed meetings.
struct Meeting {
  unsigned came = 0, living = 0;
  uint64_t met = 0;

  void OpenIfAllCame() {
    if (came < living || living == 0) return;
    came = 0;
    ++met;
  }
};

struct Warp {
  Meeting meeting;
  unsigned char values[kWarp][8] = {};
};

struct Thread {
  Fiber fiber;
  Place place;
  const Meeting* waits_for = nullptr;
  uint64_t met = 0;  // `waits_for->met` at the start of the wait
  bool ended = false;

  bool CanRun() const { return !ended && (waits_for == nullptr || waits_for->met != met); }
};

class Block {
 public:
  void Run(const Launch& launch, void** parameters, Index index);

  // The functions below are for the running thread.
  void Yield() { current_->fiber.Leave(); }
  void Meet(Meeting& meeting) {
    const uint64_t before = meeting.met;
    ++meeting.came;
    meeting.OpenIfAllCame();
    progress_ = true;
    if (meeting.met != before) return;
    current_->waits_for = &meeting;
    current_->met = before;
    Yield();
    current_->waits_for = nullptr;
  }
  // Rings the bell once after all threads have had their turn.
  void RingLater() { rings_ = true; }
  // Marks a thread that polls for another stream, so that the block does not count as deadlocked.
  void Look() {
    looks_ = true;
    Yield();
  }
  Meeting& meeting() { return meeting_; }
  Warp& warp() { return warps_[current_->place.thread.x / kWarp]; }
  void* shared() { return shared_.data(); }

 private:
  static void Body();
  void Prepare(const Launch& launch, Index index);
  void End(Thread& thread);

  const Launch* launch_ = nullptr;
  void** parameters_ = nullptr;
  Thread* current_ = nullptr;
  bool progress_ = false, looks_ = false, rings_ = false;
  Meeting meeting_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::max_align_t> shared_;
};

// Wakes kernels that wait for kernels of other ranks in the same process. Such kernels sleep,
// because the machine may have fewer cores than streams. Kernels of other processes cannot ring the
// bell, so a sleep also has a time limit.
class Bell {
 public:
  uint32_t rung() const { return rung_.load(); }
  void Ring() {
    ++rung_;
    if (sleepers_.load() > 0) syscall(SYS_futex, &rung_, FUTEX_WAKE_PRIVATE, 1 << 20);
  }
  // Waits until the bell has rung more often than `rung`, or for a short time.
  void Wait(uint32_t rung) {
    const timespec at_most{.tv_sec = 0, .tv_nsec = 50'000};
    ++sleepers_;
    syscall(SYS_futex, &rung_, FUTEX_WAIT_PRIVATE, rung, &at_most);
    --sleepers_;
  }

 private:
  std::atomic<uint32_t> rung_{0};
  std::atomic<int> sleepers_{0};
};
constinit Bell bell;

// The block on this system thread. All threads of the block run on it.
thread_local Block* running = nullptr;

void Block::Body() {
  Block& block = *running;
  block.launch_->kernel(block.parameters_);
  block.End(*block.current_);
}

void Block::End(Thread& thread) {
  thread.ended = true;
  progress_ = true;
  for (Meeting* meeting : {&meeting_, &warp().meeting}) {
    --meeting->living;
    meeting->OpenIfAllCame();
  }
  Yield();  // for good
}

void Block::Prepare(const Launch& launch, Index index) {
  const unsigned threads = launch.block.x;
  launch_ = &launch;
  shared_.resize(launch.shared_bytes / sizeof(std::max_align_t) + 1);
  // Fills shared memory with garbage, because it starts undefined.
  std::memset(static_cast<void*>(shared_.data()), 0xFF, shared_.size() * sizeof shared_[0]);
  meeting_ = {.came = 0, .living = threads, .met = 0};
  warps_.assign((threads + kWarp - 1) / kWarp, Warp());
  while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
  for (unsigned i = 0; i < threads; ++i) {
    ++warps_[i / kWarp].meeting.living;
    Thread& thread = *threads_[i];
    thread.place = {{i, 0, 0}, index, launch.block, launch.grid};
    thread.waits_for = nullptr;
    thread.ended = false;
    thread.fiber.Start(&Block::Body);
  }
}

void Block::Run(const Launch& launch, void** parameters, Index index) {
  Prepare(launch, index);
  parameters_ = parameters;
  running = this;
  const unsigned threads = launch.block.x;
  unsigned idle = 0;  // turns in which all threads have only polled
  const bool backwards = (index.x + index.y) % 2 == 1;
  for (;;) {
    progress_ = looks_ = rings_ = false;
    const uint32_t rung = bell.rung();
    for (unsigned i = 0; i < threads; ++i) {
      current_ = threads_[backwards ? threads - 1 - i : i].get();
      if (!current_->CanRun()) continue;
      here = &current_->place;
      current_->fiber.Resume();
    }
    if (rings_) bell.Ring();
    if (std::all_of(threads_.begin(), threads_.begin() + threads, [](auto& t) { return t->ended; }))
      break;
    if (progress_) {
      idle = 0;
      continue;
    }
    if (!looks_) {
      std::fprintf(
          stderr, "gpu_simulator: %s: the threads of block (%u, %u) wait for each other for ever\n",
          launch.name, index.x, index.y);
      std::abort();
    }
    // A stream that is about to run answers within a few turns. Otherwise the wait is long.
    if (++idle % 8 != 0) {
      sched_yield();
    } else {
      bell.Wait(rung);
    }
  }
  running = nullptr;
}

// The blocks that no stream uses, with their fibers.
class SpareBlocks {
 public:
  std::unique_ptr<Block> Take() {
    std::lock_guard lock(mutex_);
    if (blocks_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(blocks_.back());
    blocks_.pop_back();
    return block;
  }
  void GiveBack(std::unique_ptr<Block> block) {
    std::lock_guard lock(mutex_);
    blocks_.push_back(std::move(block));
  }
  static SpareBlocks& OfProcess() {
    static auto* const spare = new SpareBlocks;
    return *spare;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

std::map<std::string, Known>& Registry() {
  static auto* const registry = new std::map<std::string, Known>;
  return *registry;
}

}  // namespace

constinit thread_local const Place* here = nullptr;
void RingBell() { running->RingLater(); }
void* DynamicShared() { return running->shared(); }
void Yield() { running->Look(); }
void SyncBlock() { running->Meet(running->meeting()); }
void SyncWarp() { running->Meet(running->warp().meeting); }

void Exchange(const void* mine, void* theirs, unsigned bytes, unsigned lane) {
  Warp& warp = running->warp();
  std::memcpy(warp.values[Here().thread.x % kWarp], mine, bytes);
  running->Meet(warp.meeting);
  std::memcpy(theirs, warp.values[lane % kWarp], bytes);
  running->Meet(warp.meeting);
}

unsigned Ballot(bool yes) {
  Warp& warp = running->warp();
  const unsigned first = Here().thread.x / kWarp * kWarp, threads = Here().block_size.x;
  warp.values[Here().thread.x % kWarp][0] = yes ? 1 : 0;
  running->Meet(warp.meeting);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < kWarp && first + lane < threads; ++lane)
    bits |= static_cast<unsigned>(warp.values[lane][0]) << lane;
  running->Meet(warp.meeting);
  return bits;
}

void Run(const Launch& launch, void** parameters) {
  std::unique_ptr<Block> block = SpareBlocks::OfProcess().Take();
  for (unsigned y = 0; y < launch.grid.y; ++y)
    for (unsigned x = 0; x < launch.grid.x; ++x) block->Run(launch, parameters, {x, y, 0});
  SpareBlocks::OfProcess().GiveBack(std::move(block));
}

Registration::Registration(const char* name, Known known) { Registry()[name] = known; }

Known FindKernel(const char* name) {
  const auto found = Registry().find(name);
  return found == Registry().end() ? Known{} : found->second;
}

}  // namespace dtrun::gpu_simulator

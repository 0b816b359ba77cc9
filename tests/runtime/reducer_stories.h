#ifndef DTRUN_TESTS_RUNTIME_REDUCER_STORIES_H_
#define DTRUN_TESTS_RUNTIME_REDUCER_STORIES_H_

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/reducer/bucketed_reducer.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {

using Calls = std::vector<std::string>;

/// A communicator of one rank that records its all_reduces as dtype and count: "f32 16".
class RecordingCommunicator : public ops::Communicator {
 public:
  explicit RecordingCommunicator(Calls& calls)
      : Communicator(ops::Members::World(1)), calls_(calls) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* backend() const override { return "recording"; }
  std::unique_ptr<ops::Memory> Allocate(uint64_t bytes) override {
    return ops::AllocatePrivate(bytes);
  }
  std::unique_ptr<Communicator> Duplicate() override {
    return std::make_unique<RecordingCommunicator>(calls_);
  }
  std::unique_ptr<Communicator> Create(
      ops::Bootstrap&, const std::vector<int>&, ops::Members) override {
    return Duplicate();
  }

 protected:
  ops::Work StartChecked(ops::Collective collective) override {
    if (collective.kind == ops::CollectiveKind::kAllGather)
      std::memcpy(collective.output.data, collective.input.data, collective.input.bytes());
    if (collective.kind == ops::CollectiveKind::kAllReduce)
      calls_.push_back(base::Text(NameOf(collective.input.dtype), " ", collective.input.count));
    return {};
  }

 private:
  Calls& calls_;
};

inline runtime::Gradient Placed(
    const std::string& name, uint64_t count, DType dtype = DType::kF32) {
  return {name, Buffer(nullptr, count, dtype)};
}

/// Runs `rank_main` on `size` ranks, which are threads that share memory. Returns the error of each
/// rank, "" if the rank succeeds.
inline Texts RunShm(
    int size, const std::function<void(ops::Communicator&)>& rank_main,
    std::chrono::milliseconds timeout = std::chrono::seconds(600)) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::EngineOptions options{.may_spin = false};
    options.timeout = timeout;
    options.stall_warning = timeout;
    ops::Engine engine(options, clock, [](auto, const auto&) {});
    rank_main(
        *ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size())));
  });
}

}  // namespace dtrun::testing

#endif

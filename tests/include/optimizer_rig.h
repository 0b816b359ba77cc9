#ifndef DTRUN_TESTS_INCLUDE_OPTIMIZER_RIG_H_
#define DTRUN_TESTS_INCLUDE_OPTIMIZER_RIG_H_

// Ranks as threads. Each rank uses the public classes on its own communicator.

#include <dtrun/distributed_optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/c_api/handles.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {

// Runs `rank_main` on `size` ranks and returns their errors ("" for none). If a rank fails, the
// other ranks wait until `timeout`.
inline Texts OnRanks(
    int size, const std::function<void(Communicator&)>& rank_main,
    base::Duration timeout = std::chrono::seconds(20)) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    const base::LogSink log = [](auto, const auto&) {};
    ops::Engine engine({.timeout = timeout, .may_spin = false}, clock, log);
    const auto shm =
        ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    const auto recorder = ops::FlightRecorder::InMemory(bootstrap.rank(), "here");
    dtrun_communicator handle{
        {.recorder = recorder.get(), .log = &log, .engine = &engine}, shm.get(), nullptr, 1024};
    Communicator world(&handle, Communicator::Ownership::kBorrowed);
    rank_main(world);
  });
}

// Gradient descent with rate 1 on a few vectors of zeros.
class Model : public Optimizer {
 public:
  explicit Model(std::vector<size_t> counts = {3, 2}) {
    for (const size_t count : counts) values_.emplace_back(count, 0.0f);
    for (size_t i = 0; i < values_.size(); ++i)
      list_.push_back(
          {"p" + std::to_string(i), Buffer(values_[i].data(), values_[i].size()), Buffer()});
  }
  std::vector<Parameter>& parameters() override { return list_; }
  std::vector<NamedBuffer> state() override { return {}; }
  void Step() override {
    ++steps;
    for (size_t i = 0; i < list_.size(); ++i)
      if (list_[i].has_gradient)
        for (size_t k = 0; k < values_[i].size(); ++k) values_[i][k] -= gradient(i)[k];
  }

  float* gradient(size_t i) { return static_cast<float*>(list_[i].gradient.data); }
  std::vector<float>& value(size_t i) { return values_[i]; }
  // Adds `amount` to all gradient elements, as a backward pass does.
  void Backward(float amount) {
    for (size_t i = 0; i < list_.size(); ++i)
      for (size_t k = 0; k < values_[i].size(); ++k) gradient(i)[k] += amount;
  }

  int steps = 0;

 private:
  std::vector<std::vector<float>> values_;
  std::vector<Parameter> list_;
};

inline void MarkAll(DistributedOptimizer& optimizer) {
  for (size_t i = optimizer.parameters().size(); i-- > 0;) optimizer.MarkReady(i);
}

}  // namespace dtrun::testing

#endif

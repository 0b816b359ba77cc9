// serving_strategy CASE [FOLDER]: a custom loop under the strategy parameter_server. It trains "w"
// (600) and "seen" (60), 3 epochs of 20 batches. Each batch adds 1 to its own element of "seen".
// The gradient of w is 1/1024. The rate is 1, and 2 in the second epoch. The cases:
//   train       nothing special
//   whole       the optimizer needs whole variables
//   shards      every variable is cut into 3 parts
//   worker      the last worker kills itself in its 3rd step. The others wait for that, by a file
//   in
//               FOLDER
//   early       every worker leaves the first epoch after 4 batches
//   twice       the three epochs are an epoch of one data set and two passes of another data set
//   forgets     the worker evaluates with a data set for training
//   checkpoint  the servers save to FOLDER and continue from there
// The first server prints the first value of w, the least and the largest element of "seen", and
// the number of updates. The chief prints the batches of an evaluation, and whether it has seen the
// updates of its own steps.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/dataset.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/parameter_server.h>
#include <dtrun/parameter_server_strategy.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/strategy.h>
#include <dtrun/types.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace programs::serving_strategy {

using dtrun::Buffer;

constexpr uint64_t kBatches = 20, kEpochs = 3;

// value -= rate * gradient
class Descent : public dtrun::SliceableOptimizer {
 public:
  Descent(std::vector<dtrun::Parameter>& parameters, bool whole)
      : parameters_(parameters), whole_(whole) {}
  std::vector<dtrun::Parameter>& parameters() override { return parameters_; }
  bool can_slice() const override { return !whole_; }
  std::vector<dtrun::StateSlot> slots() const override { return {{"count"}}; }
  std::vector<dtrun::NamedBuffer> scalars() override { return {{"steps", Buffer(&steps_, 1)}}; }
  std::vector<double> step_settings() const override { return {rate}; }
  void set_step_settings(const std::vector<double>& settings) override { rate = settings[0]; }
  void BeginStep() override { ++steps_; }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    for (uint64_t i = 0; i < slice.count; ++i) {
      static_cast<float*>(slice.value)[i] -=
          static_cast<float>(rate) * static_cast<const float*>(slice.gradient)[i];
      static_cast<float*>(slice.slots[0])[i] += 1;
    }
  }

  double rate = 1;

 private:
  std::vector<dtrun::Parameter>& parameters_;
  bool whole_;
  uint64_t steps_ = 0;
};

// Batches whose first position is their number.
class Numbered : public dtrun::DistributedDataset {
 public:
  uint64_t batches_per_epoch() const override { return kBatches; }
  uint64_t largest_batch() const override { return 1; }
  void StartEpoch(uint64_t, uint64_t first_batch) override { next_ = first_batch; }
  bool Next(dtrun::DistributedBatch& batch) override {
    batch.examples = batch.global_batch = 1;
    batch.first_position = next_;
    return next_++ < kBatches;
  }

 private:
  uint64_t next_ = 0;
};

class Numbers : public dtrun::Dataset {
 public:
  std::unique_ptr<dtrun::DistributedDataset> Distribute(
      dtrun::Communicator&, dtrun::InputSplit) const override {
    return std::make_unique<Numbered>();
  }
  std::unique_ptr<dtrun::DistributedDataset> DistributePerReplica(
      dtrun::Communicator&) const override {
    return std::make_unique<Numbered>();
  }
};

struct Loop {
  std::string what, folder;
  std::vector<float> w = std::vector<float>(600, 1.0f), seen = std::vector<float>(60, 0.0f);
  std::vector<dtrun::Parameter> parameters = std::vector<dtrun::Parameter>(2);

  dtrun::ParameterStrategyOptions Options() const {
    dtrun::ParameterStrategyOptions options;
    options.servers.partitioner =
        what == "shards" ? dtrun::Partitioner::FixedShards(3) : dtrun::Partitioner::MinSize(1024);
    if (what == "checkpoint") options.checkpoints.folder = folder;
    return options;
  }

  void Die() const {
    std::fclose(std::fopen((folder + "/dead").c_str(), "w"));
    raise(SIGKILL);
  }
  void AwaitDeath() const {
    while (access((folder + "/dead").c_str(), F_OK) != 0) usleep(1000);
  }

  // One epoch, whose batches are those of epoch `number` of all.
  void TrainEpoch(
      dtrun::StrategyOptimizer& optimizer, dtrun::DistributedDataset& data, uint64_t epoch,
      uint64_t number, bool last_worker) {
    data.StartEpoch(epoch);
    int done = 0;
    for (dtrun::DistributedBatch batch; data.Next(batch); ++done) {
      if (what == "worker" && last_worker && done == 2) Die();
      if (what == "worker" && !last_worker) AwaitDeath();
      if (what == "early" && number == 0 && done == 4) return;
      auto* const gradient = static_cast<float*>(parameters[1].gradient.data);
      std::fill_n(static_cast<float*>(parameters[0].gradient.data), w.size(), 1.0f / 1024);
      std::fill_n(gradient, seen.size(), 0.0f);
      gradient[number * kBatches + batch.first_position] = number == 1 ? -0.5f : -1.0f;
      optimizer.Step();
    }
  }

  void Evaluate(dtrun::Strategy& strategy, bool forgets) {
    const auto data = forgets ? strategy.DistributeDataset(Numbers())
                              : strategy.DistributeEvaluationDataset(Numbers());
    data->StartEpoch(0);
    uint64_t batches = 0;
    for (dtrun::DistributedBatch batch; data->Next(batch);) batches += 1;
    if (strategy.is_chief())
      std::printf("chief: %d batches, w0 %g\n", static_cast<int>(batches), w[0]);
  }

  int Run() {
    dtrun::Context job = dtrun::Init();
    const char* const names[] = {"w", "seen"};
    std::vector<float>* const values[] = {&w, &seen};
    for (size_t i = 0; i < 2; ++i) {
      parameters[i].name = names[i];
      parameters[i].value = Buffer(values[i]->data(), values[i]->size());
      parameters[i].gradient = Buffer(nullptr, values[i]->size(), dtrun::DType::kF32);
    }
    Descent descent(parameters, what == "whole");
    Train(job, descent);
    job.Shutdown();
    return 0;
  }

  void Train(dtrun::Context& job, Descent& descent) {
    dtrun::ParameterServerStrategy strategy(job, Options());
    const auto optimizer = strategy.Scope().Distribute(descent);
    if (strategy.is_server()) {
      if (job.rank() > 0) return;
      const auto [least, largest] = std::minmax_element(seen.begin(), seen.end());
      const dtrun::ParameterStatistics statistics = strategy.server()->statistics();
      std::printf(
          "w0 %g, seen %g to %g, updates %d, lost %d\n", w[0], *least, *largest,
          static_cast<int>(statistics.updates), static_cast<int>(statistics.lost_workers));
      return;
    }
    const auto first = strategy.DistributeDataset(Numbers());
    const auto second = strategy.DistributeDataset(Numbers());
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      descent.rate = epoch == 1 ? 2 : 1;
      const bool twice = what == "twice";
      TrainEpoch(
          *optimizer, twice && epoch > 0 ? *second : *first, twice ? 0 : epoch, epoch,
          job.rank() == job.size() - 1);
    }
    Evaluate(strategy, what == "forgets");
  }
};

int Main(int argc, char** argv) {
  try {
    Loop loop;
    loop.what = argc > 1 ? argv[1] : "train";
    loop.folder = argc > 2 ? argv[2] : "";
    return loop.Run();
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "serving_strategy: %s\n", error.what());
    return 10 + static_cast<int>(error.code());
  }
}

}  // namespace programs::serving_strategy

// Ranks that train with ShardedOptimizer, with one copy of the model per rank and with one copy per
// host. They pass the optimizer state to a second optimizer. Rank 0 prints whether the result
// equals that of one rank alone.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/optimizer.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace programs::sharded {

class Momentum : public dtrun::SliceableOptimizer {
 public:
  Momentum() {
    for (const size_t count : {3, 70'001, 1, 500}) {
      values_.emplace_back(count, 1.0f);
      list_.push_back(
          {"p" + std::to_string(list_.size()),
           {values_.back().data(), count},
           {nullptr, count, dtrun::DType::kF32}});
    }
  }
  std::vector<dtrun::Parameter>& parameters() override { return list_; }
  std::vector<dtrun::StateSlot> slots() const override { return {{"momentum"}}; }
  std::vector<dtrun::NamedBuffer> scalars() override { return {{"steps", {&steps_, 1}}}; }
  void BeginStep() override { ++steps_; }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    for (uint64_t k = 0; k < slice.count; ++k) {
      float& momentum = static_cast<float*>(slice.slots[0])[k];
      momentum = momentum / 2 + static_cast<const float*>(slice.gradient)[k];
      static_cast<float*>(slice.value)[k] -= momentum / static_cast<float>(8 * steps_);
    }
  }

  // Whole numbers with an exact average over 1, 2 or 4 ranks.
  void Backward(int rank, uint64_t step) {
    for (dtrun::Parameter& parameter : list_)
      for (uint64_t k = 0; k < parameter.gradient.count; ++k)
        static_cast<float*>(parameter.gradient.data)[k] =
            static_cast<float>((k + step) % 7) + static_cast<float>(4 * rank);
  }
  std::vector<float> Values() const {
    std::vector<float> all;
    for (const dtrun::Parameter& parameter : list_) {
      const auto* data = static_cast<const float*>(parameter.value.data);
      all.insert(all.end(), data, data + parameter.value.count);
    }
    return all;
  }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<dtrun::Parameter> list_;
  uint64_t steps_ = 0;
};

// Trains two steps, then two steps with a second optimizer that gets the state and the values of
// the first.
std::vector<float> Train(dtrun::Communicator& world, bool one_copy) {
  dtrun::ShardedOptions options;
  options.one_copy_per_host = one_copy;
  Momentum first, second;
  std::vector<dtrun::StateBuffer> state;
  {
    dtrun::ShardedOptimizer optimizer(world, first, options);
    for (uint64_t step = 0; step < 2; ++step) {
      first.Backward(world.rank(), step);
      for (size_t i = first.parameters().size(); i-- > 0;) optimizer.MarkReady(i);
      optimizer.Step();
    }
    state = optimizer.ExportState();
    world.Barrier();  // no rank steps while others still read
  }
  for (size_t i = 0; i < second.parameters().size(); ++i)
    second.parameters()[i].value = first.parameters()[i].value;
  dtrun::ShardedOptimizer optimizer(world, second, options);
  optimizer.ImportState(state);
  for (uint64_t step = 2; step < 4; ++step) {
    second.Backward(world.rank(), step);
    optimizer.Step();
  }
  std::vector<float> values = second.Values();
  world.Barrier();
  return values;
}

// The values that one rank computes from the average of all gradients.
std::vector<float> TrainAlone(int size) {
  Momentum alone;
  std::vector<std::vector<float>> gradients;
  for (dtrun::Parameter& parameter : alone.parameters()) {
    gradients.emplace_back(parameter.value.count);
    parameter.gradient = {gradients.back().data(), parameter.value.count};
  }
  for (uint64_t step = 0; step < 4; ++step) {
    alone.Backward(0, step);
    for (std::vector<float>& gradient : gradients)
      for (float& each : gradient) each += static_cast<float>(2 * (size - 1));
    alone.Step();
  }
  return alone.Values();
}

int Main(int, char**) {
  dtrun::Context job = dtrun::Init();
  const bool shared = job.world().backend() != "mpi";
  const std::vector<float> expected = TrainAlone(job.size());
  uint64_t wrong = Train(job.world(), false) != expected ? 1 : 0;
  if (shared && Train(job.world(), true) != expected) ++wrong;
  job.world().AllReduce(dtrun::Buffer(&wrong, 1));
  if (job.rank() == 0)
    std::printf(
        "%s: %s, %d wrong\n", job.world().backend().c_str(), shared ? "both ways" : "a copy each",
        static_cast<int>(wrong));
  job.Shutdown();
  return wrong == 0 ? 0 : 1;
}

}  // namespace programs::sharded

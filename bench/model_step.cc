// What follows the reduction: every rank updates the whole model, or its share of it. The modes use
// the same loop over the same sizes, and take turns.

#include <dtrun/dtrun.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gradient_modes.h"
#include "bench/measure.h"
#include "bench/momentum_sgd.h"

namespace dtrun::bench {
namespace {

// One mode: its model, and how it steps.
class Stepper {
 public:
  explicit Stepper(const GradientCase& measured) : sgd_(measured.shapes) {}
  virtual ~Stepper() = default;
  virtual void Run() = 0;

  // Values that are not what two steps from zero make of known gradients, over all ranks.
  uint64_t Wrong(Communicator& comm) {
    const auto each = [this](const std::function<void(float*, float*, float)>& visit) {
      for (size_t i = 0; i < sgd_.parameters().size(); ++i) {
        const Parameter& parameter = sgd_.parameters()[i];
        for (uint64_t k = 0; k < parameter.value.count; ++k)
          visit(
              static_cast<float*>(parameter.gradient.data) + k,
              static_cast<float*>(parameter.value.data) + k, static_cast<float>(1 + (i + k) % 13));
      }
    };
    for (int step = 0; step < 2; ++step) {
      each([&](float* gradient, float*, float factor) {
        *gradient = static_cast<float>(comm.rank() + 1) * factor;
      });
      Run();
    }
    const float average = static_cast<float>(comm.size() + 1) / 2;
    const float share = -MomentumSgd::kRate * average * (2 + MomentumSgd::kMomentum);
    uint64_t wrong = 0;
    each([&](float*, const float* value, float factor) {
      wrong += std::abs(*value - share * factor) > 1e-5f * std::abs(share * factor);
    });
    comm.AllReduce(Buffer(&wrong, 1), ReduceOp::kSum);
    return wrong;
  }

 protected:
  MomentumSgd sgd_;
};

class LocalStep : public Stepper {
 public:
  LocalStep(Communicator& comm, const GradientCase& measured)
      : Stepper(measured), reducer_(comm, GradientsOf(sgd_)) {
    for (size_t i = 0; i < sgd_.parameters().size(); ++i)
      sgd_.parameters()[i].gradient = reducer_.gradient(i);
  }
  void Run() override {
    for (size_t i = sgd_.parameters().size(); i-- > 0;) reducer_.MarkReady(i);
    reducer_.Wait();
    sgd_.Step();
  }

 private:
  static std::vector<Gradient> GradientsOf(Optimizer& optimizer) {
    std::vector<Gradient> gradients;
    for (const Parameter& parameter : optimizer.parameters())
      gradients.push_back({parameter.name, parameter.gradient});
    return gradients;
  }

  GradientReducer reducer_;
};

class ShardedStep : public Stepper {
 public:
  ShardedStep(Communicator& comm, const GradientCase& measured, bool one_copy)
      : Stepper(measured), optimizer_(comm, sgd_, OptionsOf(one_copy)) {}
  void Run() override {
    for (size_t i = sgd_.parameters().size(); i-- > 0;) optimizer_.MarkReady(i);
    optimizer_.Step();
  }

 private:
  static ShardedOptions OptionsOf(bool one_copy) {
    ShardedOptions options;
    options.one_copy_per_host = one_copy;
    return options;
  }

  ShardedOptimizer optimizer_;
};

}  // namespace

std::vector<nlohmann::json> MeasureSteps(Communicator& comm, const GradientCase& measured) {
  std::vector<std::string> modes = {"local_step", "sharded_step"};
  std::vector<std::unique_ptr<Stepper>> steppers;
  steppers.push_back(std::make_unique<LocalStep>(comm, measured));
  steppers.push_back(std::make_unique<ShardedStep>(comm, measured, false));
  if (comm.backend() == "shm" || comm.backend() == "self") {
    modes.push_back("sharded_step_one_copy");
    steppers.push_back(std::make_unique<ShardedStep>(comm, measured, true));
  }
  std::vector<uint64_t> wrong;
  std::vector<std::function<void()>> sides;
  for (const auto& stepper : steppers) {
    wrong.push_back(stepper->Wrong(comm));
    sides.emplace_back([&stepper] { stepper->Run(); });
  }
  const uint64_t count = measured.count();
  std::vector<float> from(comm.rank() == 0 ? count : 0, 1), to(from);
  sides.emplace_back([&] { std::memcpy(to.data(), from.data(), from.size() * sizeof(float)); });
  const std::vector<double> us = MeasureInTurn(comm, sides, measured.least_rounds);
  std::vector<nlohmann::json> rows;
  for (size_t i = 0; i < modes.size(); ++i)
    rows.push_back(
        {{"case", measured.name},
         {"mode", modes[i]},
         {"ranks", comm.size()},
         {"tensors", measured.shapes.size()},
         {"bytes", count * sizeof(float)},
         {"time_us", us[i]},
         {"memcpy_us", us.back()},
         {"ratio_to_memcpy", us[i] / us.back()},
         {"local_step_us", us[0]},
         {"ratio_to_local_step", us[i] / us[0]},
         {"wrong", wrong[i]}});
  return rows;
}

}  // namespace dtrun::bench

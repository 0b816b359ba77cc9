// The cost of a step after the backward pass. Run it under dtrun or mpirun.
//
// First, the time to reduce all gradients of a model that are ready at once. It is compared with
// Horovod's method over raw MPI: copy into a buffer of 64 MiB, MPI_Allreduce, copy back. It is also
// compared with the time in which one core copies as many bytes while the other ranks are idle. The
// three alternate in the same processes.
//
//   mapped:    the gradients lie in the reducer's block, which the ranks of a host share
//   scattered: each gradient lies in separate memory, as in an existing trainer
//
// Second, the time to reduce and to step with SGD and momentum. The modes alternate:
//
//   local_step:            the mapped gradients are reduced, then every rank steps the whole model
//   sharded_step:          every rank steps a share of the model, in one pass with the reduction
//   sharded_step_one_copy: the same, and the ranks of a host share the parameters

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"
#include "bench/model_shapes.h"
#include "bench/momentum_sgd.h"

namespace programs::gradient_perf {

using namespace dtrun::bench;
using namespace dtrun;
using dtrun::bench::Shape;  // not dtrun::Shape

/// A model to measure, and the least number of timed rounds.
struct GradientCase {
  std::string name;
  std::vector<Shape> shapes;
  int least_rounds = 15;

  uint64_t count() const;
};

/// Times the reduction alone, in the mode "mapped" or "scattered". Compares it with Horovod's
/// method over raw MPI, and with a memcpy by one core while the other cores are idle. Collective.
nlohmann::json MeasureReduction(
    Communicator& comm, const GradientCase& measured, const std::string& mode);

/// Times the reduction with a step of SGD and momentum, in the modes "local_step", "sharded_step"
/// and "sharded_step_one_copy", which alternate. Returns a row for each mode, in this order. The
/// last mode is left out if the ranks do not share a host. Collective.
std::vector<nlohmann::json> MeasureSteps(Communicator& comm, const GradientCase& measured);

namespace {

using nlohmann::json;

const std::vector<std::string> kReductions = {"mapped", "scattered"};
const std::vector<std::string> kSteps = {"local_step", "sharded_step", "sharded_step_one_copy"};

struct Settings {
  std::string model = "resnet50";
  std::string mode = "all";
  int least_rounds = 15;
};

GradientCase CaseOf(const Settings& settings) {
  return {
      settings.model,
      settings.model == "resnet50" ? dtrun::bench::ResNet50() : dtrun::bench::Equal(1000, 256),
      settings.least_rounds};
}

bool Contains(const std::vector<std::string>& modes, const std::string& mode) {
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

std::vector<std::string> ModeNames() {
  std::vector<std::string> names = {"all"};
  names.insert(names.end(), kReductions.begin(), kReductions.end());
  names.insert(names.end(), kSteps.begin(), kSteps.end());
  return names;
}

void PrintHeader(dtrun::Context& job) {
  std::printf(
      "# %d ranks, backend %s; beside it %s\n", job.size(), job.world().backend().c_str(),
      dtrun::bench::ReadPeerSettings().version.c_str());
}

// Prints the columns that all rows have.
void PrintStart(const json& row) {
  std::printf(
      "%-10s %-21s %8d %12lld %12.1f %12.1f %10.2f ", row["case"].get<std::string>().c_str(),
      row["mode"].get<std::string>().c_str(), row["tensors"].get<int>(),
      row["bytes"].get<long long>(), row["time_us"].get<double>(), row["memcpy_us"].get<double>(),
      row["ratio_to_memcpy"].get<double>());
}

void PrintTitles(const char* peer, const char* ratio) {
  std::printf(
      "%-10s %-21s %8s %12s %12s %12s %10s %13s %13s %6s\n", "case", "mode", "tensors", "bytes",
      "time us", "memcpy us", "of memcpy", peer, ratio, "wrong");
}

void PrintRow(const json& row, const char* peer, const char* ratio) {
  PrintStart(row);
  std::printf(
      "%13.1f %13.2f %6lld\n", row[peer].get<double>(), row[ratio].get<double>(),
      row["wrong"].get<long long>());
  std::fflush(stdout);
}

void MeasureEachReduction(dtrun::Context& job, const Settings& settings, json& rows) {
  if (job.rank() == 0) PrintTitles("MPI fused us", "times faster");
  for (const std::string& mode : kReductions) {
    if (settings.mode != "all" && settings.mode != mode) continue;
    rows.push_back(MeasureReduction(job.world(), CaseOf(settings), mode));
    if (job.rank() == 0) PrintRow(rows.back(), "mpi_fused_us", "ratio");
  }
}

void MeasureEachStep(dtrun::Context& job, const Settings& settings, json& rows) {
  if (job.rank() == 0) PrintTitles("local step us", "of local step");
  for (json& row : MeasureSteps(job.world(), CaseOf(settings))) {
    if (settings.mode != "all" && settings.mode != row["mode"]) continue;
    if (job.rank() == 0) PrintRow(row, "local_step_us", "ratio_to_local_step");
    rows.push_back(std::move(row));
  }
}

json MeasureAll(dtrun::Context& job, const Settings& settings) {
  if (job.rank() == 0) PrintHeader(job);
  json rows = json::array();
  if (!Contains(kSteps, settings.mode)) MeasureEachReduction(job, settings, rows);
  if (!Contains(kReductions, settings.mode)) MeasureEachStep(job, settings, rows);
  return rows;
}

}  // namespace

// The reduction of all gradients of a model that are ready at once, with dtrun and with Horovod's
// method.

namespace {

using Tensors = std::vector<std::vector<float>>;

Tensors TensorsOf(const std::vector<Shape>& shapes) {
  Tensors tensors;
  for (const Shape& shape : shapes) tensors.emplace_back(shape.count);
  return tensors;
}

// dtrun's reducer, with gradients in its block or in separate memory.
class Reduction {
 public:
  Reduction(Communicator& comm, const std::vector<Shape>& shapes, bool scattered)
      : comm_(comm),
        own_(scattered ? TensorsOf(shapes) : Tensors()),
        reducer_(comm, GradientsOf(shapes)),
        count_(shapes.size()) {}

  // Marks the gradients in the order of a backward pass: from the last layer to the first.
  void Run() {
    for (size_t i = count_; i-- > 0;) reducer_.MarkReady(i);
    reducer_.Wait();
  }

  // Runs with known inputs and returns the number of elements that are not the average, over all
  // ranks.
  uint64_t Wrong() {
    for (size_t i = 0; i < count_; ++i) {
      const Buffer gradient = reducer_.gradient(i);
      for (uint64_t k = 0; k < gradient.count; ++k)
        static_cast<float*>(gradient.data)[k] = static_cast<float>(comm_.rank() + 1) * Factor(i, k);
    }
    Run();
    uint64_t wrong = 0;
    const float average = static_cast<float>(comm_.size() + 1) / 2;
    for (size_t i = 0; i < count_; ++i) {
      const Buffer gradient = reducer_.gradient(i);
      for (uint64_t k = 0; k < gradient.count; ++k) {
        const float expected = average * Factor(i, k);
        wrong += std::abs(static_cast<const float*>(gradient.data)[k] - expected) >
                 1e-6f * std::abs(expected);
      }
    }
    comm_.AllReduce(Buffer(&wrong, 1), ReduceOp::kSum);
    return wrong;
  }

 private:
  static float Factor(size_t i, uint64_t k) { return static_cast<float>(1 + (i + k) % 13); }

  std::vector<Gradient> GradientsOf(const std::vector<Shape>& shapes) {
    std::vector<Gradient> gradients;
    for (size_t i = 0; i < shapes.size(); ++i) {
      float* data = own_.empty() ? nullptr : own_[i].data();
      gradients.push_back({shapes[i].name, Buffer(data, shapes[i].count, DType::kF32)});
    }
    return gradients;
  }

  Communicator& comm_;
  Tensors own_;
  GradientReducer reducer_;
  size_t count_;
};

// Horovod's method: copies as many ready tensors as fit into a fusion buffer, then reduces the
// buffer.
class FusedMpi {
 public:
  explicit FusedMpi(const std::vector<Shape>& shapes)
      : tensors_(TensorsOf(shapes)), buffer_(kFusionBytes / sizeof(float)) {}

  void Run() {
    for (size_t end = tensors_.size(); end > 0;) {
      uint64_t filled = 0;
      size_t begin = end;
      while (begin > 0 && filled + tensors_[begin - 1].size() <= buffer_.size()) {
        const std::vector<float>& tensor = tensors_[--begin];
        std::memcpy(buffer_.data() + filled, tensor.data(), tensor.size() * sizeof(float));
        filled += tensor.size();
      }
      MPI_Allreduce(
          MPI_IN_PLACE, buffer_.data(), static_cast<int>(filled), MPI_FLOAT, MPI_SUM,
          MPI_COMM_WORLD);
      filled = 0;
      for (size_t i = end; i-- > begin;) {
        std::memcpy(
            tensors_[i].data(), buffer_.data() + filled, tensors_[i].size() * sizeof(float));
        filled += tensors_[i].size();
      }
      end = begin;
    }
  }

 private:
  static constexpr uint64_t kFusionBytes = 64 << 20;

  Tensors tensors_;  // zeros, which remain zeros in all sums
  std::vector<float> buffer_;
};

}  // namespace

uint64_t GradientCase::count() const {
  uint64_t count = 0;
  for (const Shape& shape : shapes) count += shape.count;
  return count;
}

nlohmann::json MeasureReduction(
    Communicator& comm, const GradientCase& measured, const std::string& mode) {
  const uint64_t count = measured.count();
  Reduction reduction(comm, measured.shapes, mode == "scattered");
  FusedMpi fused(measured.shapes);
  std::vector<float> from(comm.rank() == 0 ? count : 0, 1), to(from);
  const uint64_t wrong = reduction.Wrong();
  const std::vector<double> us = MeasureInTurn(
      comm,
      {[&] { reduction.Run(); }, [&] { fused.Run(); },
       [&] { std::memcpy(to.data(), from.data(), from.size() * sizeof(float)); }},
      measured.least_rounds);
  return {
      {"case", measured.name},
      {"mode", mode},
      {"ranks", comm.size()},
      {"tensors", measured.shapes.size()},
      {"bytes", count * sizeof(float)},
      {"time_us", us[0]},
      {"memcpy_us", us[2]},
      {"ratio_to_memcpy", us[0] / us[2]},
      {"mpi_fused_us", us[1]},
      {"ratio", us[1] / us[0]},
      {"wrong", wrong}};
}

// The step after the reduction: every rank updates the whole model, or its share of the model. The
// modes use the same loop over the same sizes, and alternate.

namespace {

// A mode: its model and its step.
class Stepper {
 public:
  explicit Stepper(const GradientCase& measured) : sgd_(measured.shapes) {}
  virtual ~Stepper() = default;
  virtual void Run() = 0;

  uint64_t Wrong(Communicator& comm) {
    return WrongAfterTwoSteps(comm, sgd_, [this] { Run(); });
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

using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int Main(int argc, char** argv) {
  Settings settings;
  OptionSet options(
      "The time to reduce a model's gradients, and to step with them.", "gradient_perf");
  options.Add(
      "--case", &settings.model, "the gradients: ResNet-50's 161, or 1,000 of 1 KiB",
      Words{"resnet50", "thousand"});
  options.Add("--mode", &settings.mode, "where they lie, or how the step is made", ModeNames());
  options.Add(
      "--rounds", &settings.least_rounds, "timed rounds of each side, at least",
      Range<int>{1, 10000});
  return dtrun::bench::Main(
      options,
      {"gradient_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       dtrun::bench::ObstacleBesideMpi},
      argc, argv);
}

}  // namespace programs::gradient_perf

// The time to reduce all gradients of a model that are ready at once, beside Horovod's way to do it
// over raw MPI (copy into a buffer of 64 MiB, MPI_Allreduce, copy back), and beside the time in
// which one core copies as many bytes while the other ranks are idle. The three take turns in the
// same processes. Run it under dtrun or mpirun.
//
//   mapped:    the gradients lie in the reducer's block, which the ranks of a host share
//   scattered: each lies in memory of its own, as an existing trainer has it

#include <dtrun/dtrun.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/model_shapes.h"
#include "bench/program.h"

namespace {

using dtrun::bench::Shape;
using nlohmann::json;
using Tensors = std::vector<std::vector<float>>;

struct Settings {
  std::string model = "resnet50";
  std::string mode = "all";
  int least_rounds = 15;
};

std::vector<Shape> ShapesOf(const std::string& model) {
  if (model == "resnet50") return dtrun::bench::ResNet50();
  return dtrun::bench::Equal(1000, 256);  // "thousand"
}

Tensors TensorsOf(const std::vector<Shape>& shapes) {
  Tensors tensors;
  for (const Shape& shape : shapes) tensors.emplace_back(shape.count);
  return tensors;
}

// dtrun's reducer, with gradients in its block or in memory of their own.
class Reduction {
 public:
  Reduction(dtrun::Communicator& comm, const std::vector<Shape>& shapes, bool scattered)
      : comm_(comm),
        own_(scattered ? TensorsOf(shapes) : Tensors()),
        reducer_(comm, GradientsOf(shapes)),
        count_(shapes.size()) {}

  // As after a backward pass: from the last layer to the first.
  void Run() {
    for (size_t i = count_; i-- > 0;) reducer_.MarkReady(i);
    reducer_.Wait();
  }

  // Elements that are not the average, over all ranks, of a run with inputs that are known.
  uint64_t Wrong() {
    for (size_t i = 0; i < count_; ++i) {
      const dtrun::Buffer gradient = reducer_.gradient(i);
      for (uint64_t k = 0; k < gradient.count; ++k)
        static_cast<float*>(gradient.data)[k] = static_cast<float>(comm_.rank() + 1) * Factor(i, k);
    }
    Run();
    uint64_t wrong = 0;
    const float average = static_cast<float>(comm_.size() + 1) / 2;
    for (size_t i = 0; i < count_; ++i) {
      const dtrun::Buffer gradient = reducer_.gradient(i);
      for (uint64_t k = 0; k < gradient.count; ++k) {
        const float expected = average * Factor(i, k);
        wrong += std::abs(static_cast<const float*>(gradient.data)[k] - expected) >
                 1e-6f * std::abs(expected);
      }
    }
    comm_.AllReduce(dtrun::Buffer(&wrong, 1), dtrun::ReduceOp::kSum);
    return wrong;
  }

 private:
  static float Factor(size_t i, uint64_t k) { return static_cast<float>(1 + (i + k) % 13); }

  std::vector<dtrun::Gradient> GradientsOf(const std::vector<Shape>& shapes) {
    std::vector<dtrun::Gradient> gradients;
    for (size_t i = 0; i < shapes.size(); ++i) {
      float* data = own_.empty() ? nullptr : own_[i].data();
      gradients.push_back(
          {shapes[i].name, dtrun::Buffer(data, shapes[i].count, dtrun::DType::kF32)});
    }
    return gradients;
  }

  dtrun::Communicator& comm_;
  Tensors own_;
  dtrun::GradientReducer reducer_;
  size_t count_;
};

// Horovod's way: tensors that are ready are copied into a fusion buffer, as many as fit.
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

  Tensors tensors_;  // zeros, which stay zeros however often they are added
  std::vector<float> buffer_;
};

json MeasureMode(dtrun::Context& job, const Settings& settings, const std::string& mode) {
  dtrun::Communicator& comm = job.world();
  const std::vector<Shape> shapes = ShapesOf(settings.model);
  uint64_t count = 0;
  for (const Shape& shape : shapes) count += shape.count;
  Reduction reduction(comm, shapes, mode == "scattered");
  FusedMpi fused(shapes);
  std::vector<float> from(job.rank() == 0 ? count : 0, 1), to(from);
  const uint64_t wrong = reduction.Wrong();
  const std::vector<double> us = dtrun::bench::MeasureInTurn(
      comm,
      {[&] { reduction.Run(); }, [&] { fused.Run(); },
       [&] { std::memcpy(to.data(), from.data(), from.size() * sizeof(float)); }},
      settings.least_rounds);
  return {
      {"case", settings.model},
      {"mode", mode},
      {"ranks", comm.size()},
      {"tensors", shapes.size()},
      {"bytes", count * sizeof(float)},
      {"time_us", us[0]},
      {"memcpy_us", us[2]},
      {"ratio_to_memcpy", us[0] / us[2]},
      {"mpi_fused_us", us[1]},
      {"ratio", us[1] / us[0]},
      {"wrong", wrong}};
}

void PrintHeader(dtrun::Context& job) {
  std::printf(
      "# %d ranks, backend %s; beside it %s\n", job.size(), job.world().backend().c_str(),
      dtrun::bench::ReadPeerSettings().version.c_str());
  std::printf(
      "%-10s %-10s %8s %12s %12s %12s %10s %12s %8s %6s\n", "case", "mode", "tensors", "bytes",
      "time us", "memcpy us", "of memcpy", "MPI fused us", "ratio", "wrong");
}

void PrintRow(const json& row) {
  std::printf(
      "%-10s %-10s %8d %12lld %12.1f %12.1f %10.2f %12.1f %8.1f %6lld\n",
      row["case"].get<std::string>().c_str(), row["mode"].get<std::string>().c_str(),
      row["tensors"].get<int>(), row["bytes"].get<long long>(), row["time_us"].get<double>(),
      row["memcpy_us"].get<double>(), row["ratio_to_memcpy"].get<double>(),
      row["mpi_fused_us"].get<double>(), row["ratio"].get<double>(), row["wrong"].get<long long>());
  std::fflush(stdout);
}

json MeasureAll(dtrun::Context& job, const Settings& settings) {
  if (job.rank() == 0) PrintHeader(job);
  json rows = json::array();
  for (const std::string mode : {"mapped", "scattered"}) {
    if (settings.mode != "all" && settings.mode != mode) continue;
    rows.push_back(MeasureMode(job, settings, mode));
    if (job.rank() == 0) PrintRow(rows.back());
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("The time to reduce a model's gradients.", "gradient_perf");
  app.add_option("--case", settings.model, "the gradients: ResNet-50's 161, or 1,000 of 1 KiB")
      ->check(CLI::IsMember({"resnet50", "thousand"}))
      ->capture_default_str();
  app.add_option("--mode", settings.mode, "where they lie")
      ->check(CLI::IsMember({"all", "mapped", "scattered"}))
      ->capture_default_str();
  app.add_option("--rounds", settings.least_rounds, "timed rounds of each side, at least")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  return dtrun::bench::Main(
      app,
      {"gradient_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       dtrun::bench::ObstacleBesideMpi},
      argc, argv);
}

// The reduction of all gradients of a model that are ready at once, in dtrun's way and in
// Horovod's.

#include <dtrun/dtrun.h>
#include <mpi.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gradient_modes.h"
#include "bench/measure.h"

namespace dtrun::bench {
namespace {

using Tensors = std::vector<std::vector<float>>;

Tensors TensorsOf(const std::vector<Shape>& shapes) {
  Tensors tensors;
  for (const Shape& shape : shapes) tensors.emplace_back(shape.count);
  return tensors;
}

// dtrun's reducer, with gradients in its block or in memory of their own.
class Reduction {
 public:
  Reduction(Communicator& comm, const std::vector<Shape>& shapes, bool scattered)
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

}  // namespace dtrun::bench

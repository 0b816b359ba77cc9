#include "tests/ranks/reducer_checks.h"

#include <dtrun/gradient_reducer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::testing {
namespace {

constexpr int kSteps = 3;

// Element k of a gradient on a rank. Values are small, so sums over the ranks are exact in 16 bits.
uint64_t ValueOf(int rank, uint64_t k) { return static_cast<uint64_t>(rank + 1) * (k % 3); }

template <typename T>
void FillWith(const Buffer& gradient, int rank) {
  for (uint64_t k = 0; k < gradient.count; ++k)
    static_cast<T*>(gradient.data)[k] = static_cast<T>(ValueOf(rank, k));
}

template <typename T>
uint64_t Wrong(const Buffer& gradient, int size) {
  const auto ranks = static_cast<uint64_t>(size);
  uint64_t wrong = 0;
  for (uint64_t k = 0; k < gradient.count; ++k)
    wrong += static_cast<const T*>(gradient.data)[k] !=
             static_cast<T>(ValueOf(0, k) * (ranks * (ranks + 1) / 2));
  return wrong;
}

void Fill(const Buffer& gradient, int rank) {
  if (gradient.dtype == DType::kF32) FillWith<float>(gradient, rank);
  if (gradient.dtype == DType::kF64) FillWith<double>(gradient, rank);
  if (gradient.dtype == DType::kI64) FillWith<int64_t>(gradient, rank);
}

uint64_t WrongOf(const Buffer& gradient, int size) {
  if (gradient.dtype == DType::kF32) return Wrong<float>(gradient, size);
  if (gradient.dtype == DType::kF64) return Wrong<double>(gradient, size);
  return Wrong<int64_t>(gradient, size);
}

void CheckReducer(
    Communicator& comm, const ReducerOptions& options, const std::string& what,
    Findings& findings) {
  std::vector<float> own(1000);
  std::vector<double> wide(70'000);
  const std::vector<Gradient> gradients = {
      {"placed", Buffer(nullptr, 5000, DType::kF32)},   {"own", Buffer(own.data(), own.size())},
      {"large", Buffer(nullptr, 300'000, DType::kF32)}, {"wide", Buffer(wide.data(), wide.size())},
      {"counts", Buffer(nullptr, 3, DType::kI64)},      {"small", Buffer(nullptr, 7, DType::kF32)},
      {"never", Buffer(nullptr, 9, DType::kF32)},
  };
  const size_t count = gradients.size() - 1;  // the last gradient is never used
  GradientReducer reducer(comm, gradients, options);
  for (size_t step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < count; ++i) Fill(reducer.gradient(i), comm.rank());
    reducer.MarkUnused(count);
    for (size_t k = 0; k < count; ++k)
      reducer.MarkReady((k * 5 + step + static_cast<size_t>(comm.rank())) % count);
    reducer.Wait();
    for (size_t i = 0; i < count; ++i) {
      findings.Count(
          WrongOf(reducer.gradient(i), comm.size()) == 0 && reducer.WasUsed(i),
          "'" + gradients[i].name + "' in step " + std::to_string(step) + ", " + what);
    }
    findings.Count(!reducer.WasUsed(count), "a gradient that nobody used, " + what);
  }
}

}  // namespace

void CheckReducers(Communicator& comm, Findings& findings) {
  for (const Wire wire : {Wire::kNone, Wire::kF16, Wire::kBF16}) {
    for (const bool grouped : {false, true}) {
      ReducerOptions options;
      options.op = ReduceOp::kSum;
      options.bucket_bytes = 16 << 10;
      options.wire = wire;
      if (grouped) options.groups = {{0, 5}, {2, 1}};
      CheckReducer(
          comm, options,
          std::string(grouped ? "grouped" : "not grouped") + ", wire " +
              std::to_string(static_cast<int>(wire)),
          findings);
    }
  }
}

}  // namespace dtrun::testing

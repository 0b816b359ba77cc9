#ifndef DTRUN_TESTS_RUNTIME_SHARDED_RANKS_H_
#define DTRUN_TESTS_RUNTIME_SHARDED_RANKS_H_

#include <dtrun/sharded_optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/thread_ranks.h"

namespace dtrun::testing {

/// The connection of the ranks. kShm: memory that all ranks map. kCopying: a backend that copies,
/// as between hosts. kHosts: hosts of two ranks (the last may have one), which exist in name only.
enum class Backend { kShm, kCopying, kHosts };

/// Runs `rank_main` on `size` ranks, which are threads of this process. Returns the error of each
/// rank, "" if the rank succeeds.
Texts OnRanks(int size, Backend backend, const std::function<void(Communicator&)>& rank_main);

/// The element counts of some parameters. One parameter is empty.
inline const std::vector<size_t> kCounts = {3, 1, 0, 1000, 17, 9001};

/// An optimizer like Adam, in the dtype of T: two numbers of state per element and a count of
/// steps.
template <typename T>
class Moments : public SliceableOptimizer {
 public:
  explicit Moments(const std::vector<size_t>& counts) {
    for (size_t i = 0; i < counts.size(); ++i) {
      values_.emplace_back(counts[i]);
      for (size_t k = 0; k < counts[i]; ++k)
        values_[i][k] = static_cast<T>(k % 17) / 16 - static_cast<T>(i) / 4;
      list_.push_back(
          {"p" + std::to_string(i), Buffer(values_[i].data(), counts[i]),
           Buffer(nullptr, counts[i], values_.empty() ? DType::kF32 : detail::DTypeOf<T>())});
    }
  }
  std::vector<Parameter>& parameters() override { return list_; }
  std::vector<StateSlot> slots() const override { return {{"first"}, {"second", DType::kF64}}; }
  std::vector<NamedBuffer> scalars() override { return {{"steps", Buffer(&steps_, 1)}}; }
  void BeginStep() override { ++steps_; }
  void StepSlice(const ParameterSlice& slice) override {
    const auto* gradient = static_cast<const T*>(slice.gradient);
    auto* value = static_cast<T*>(slice.value);
    auto* first = static_cast<T*>(slice.slots[0]);
    auto* second = static_cast<double*>(slice.slots[1]);
    for (uint64_t k = 0; k < slice.count; ++k) {
      first[k] = first[k] / 2 + gradient[k];
      second[k] += static_cast<double>(gradient[k]) * static_cast<double>(gradient[k]);
      value[k] -= (first[k] / 4 + static_cast<T>(second[k]) / 64) / static_cast<T>(steps_);
    }
  }

  T* value(size_t i) { return static_cast<T*>(list_[i].value.data); }
  T* gradient(size_t i) { return static_cast<T*>(list_[i].gradient.data); }
  /// Sets gradients that differ by rank, step and element. Most of them are not exact in binary.
  void Backward(int rank, int step) {
    for (size_t i = 0; i < list_.size(); ++i)
      for (size_t k = 0; k < list_[i].value.count; ++k)
        gradient(i)[k] =
            static_cast<T>((k * 5 + i * 3 + static_cast<size_t>(7 * rank + 11 * step)) % 23) / 10 -
            1;
  }
  std::vector<T> AllValues() {
    std::vector<T> all;
    for (const Parameter& parameter : list_) {
      const auto* data = static_cast<const T*>(parameter.value.data);
      all.insert(all.end(), data, data + parameter.value.count);
    }
    return all;
  }

 private:
  std::vector<std::vector<T>> values_;
  std::vector<Parameter> list_;
  uint64_t steps_ = 0;
};

}  // namespace dtrun::testing

#endif

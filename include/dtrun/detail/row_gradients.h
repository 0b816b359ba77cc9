#ifndef DTRUN_DETAIL_ROW_GRADIENTS_H_
#define DTRUN_DETAIL_ROW_GRADIENTS_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

// Gathers the gradients by rows of a DistributedOptimizer. Internal.

namespace dtrun {
namespace detail {

/// Rows of one parameter, in the order of their arrival. A row may occur more than once.
struct RowList {
  std::vector<int64_t> rows;
  std::vector<unsigned char> values;

  Buffer ValuesOf(uint64_t row_length, DType dtype) {
    return Buffer(values.data(), rows.size() * row_length, dtype);
  }
};

/// Adds up equal rows. The result has every row once, in ascending order. The values of a row are
/// added in the order of the list, then multiplied by `factor`.
template <typename T>
RowList AddedUp(const RowList& list, uint64_t row_length, double factor) {
  std::vector<size_t> order(list.rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(
      order.begin(), order.end(), [&](size_t a, size_t b) { return list.rows[a] < list.rows[b]; });
  RowList sum;
  std::vector<T> values;
  const auto* all = reinterpret_cast<const T*>(list.values.data());
  for (const size_t k : order) {
    const T* row = all + k * row_length;
    if (sum.rows.empty() || sum.rows.back() != list.rows[k]) {
      sum.rows.push_back(list.rows[k]);
      values.insert(values.end(), row, row + row_length);
      continue;
    }
    T* last = values.data() + values.size() - row_length;
    for (uint64_t j = 0; j < row_length; ++j) last[j] += row[j];
  }
  if (factor != 1)
    for (T& value : values) value = static_cast<T>(static_cast<double>(value) * factor);
  sum.values.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(sum.values.data(), values.data(), sum.values.size());
  return sum;
}

inline RowList AddedUp(const RowList& list, uint64_t row_length, DType dtype, double factor) {
  return dtype == DType::kF64 ? AddedUp<double>(list, row_length, factor)
                              : AddedUp<float>(list, row_length, factor);
}

/// Adds rows to a whole gradient.
template <typename T>
void AddRows(const int64_t* rows, uint64_t count, uint64_t length, const T* values, T* gradient) {
  for (uint64_t k = 0; k < count; ++k)
    for (uint64_t j = 0; j < length; ++j)
      gradient[static_cast<uint64_t>(rows[k]) * length + j] += values[k * length + j];
}

inline void AddRows(
    const int64_t* rows, uint64_t count, uint64_t length, const Buffer& values,
    const Buffer& gradient) {
  if (values.dtype == DType::kF64)
    AddRows(
        rows, count, length, static_cast<const double*>(values.data),
        static_cast<double*>(gradient.data));
  else
    AddRows(
        rows, count, length, static_cast<const float*>(values.data),
        static_cast<float*>(gradient.data));
}

/// Throws kInvalidArgument unless `values` are `count` rows of the parameter.
inline void CheckRowsOf(
    const Parameter& parameter, const int64_t* rows, uint64_t count, const Buffer& values) {
  const auto refuse = [&](const std::string& text) {
    throw Error(
        ErrorCode::kInvalidArgument, "the rows of parameter '" + parameter.name + "': " + text);
  };
  if (parameter.row_length == 0)
    refuse("found no row_length; set Parameter::row_length before the optimizer is wrapped");
  if (values.dtype != parameter.value.dtype)
    refuse(
        std::string("their values are ") + NameOf(values.dtype) + "; expected " +
        NameOf(parameter.value.dtype));
  if (values.count != count * parameter.row_length)
    refuse(
        "found " + std::to_string(values.count) + " values; expected " +
        std::to_string(count * parameter.row_length) + ", " + std::to_string(count) + " rows of " +
        std::to_string(parameter.row_length));
  const uint64_t height = parameter.value.count / parameter.row_length;
  for (uint64_t k = 0; k < count; ++k)
    if (rows[k] < 0 || static_cast<uint64_t>(rows[k]) >= height)
      refuse(
          "row " + std::to_string(rows[k]) + " does not exist; expected 0 to " +
          std::to_string(height - 1));
}

/// The rows of one parameter in this step: the rows of this rank, and the rows of all ranks.
class RowGradients {
 public:
  /// `is_local`: the rows of other ranks are not gathered.
  RowGradients(size_t parameter, bool is_local) : parameter_(parameter), is_local_(is_local) {}

  size_t parameter() const { return parameter_; }
  bool is_local() const { return is_local_; }

  void Add(const int64_t* rows, uint64_t count, const Buffer& values) {
    mine_.rows.insert(mine_.rows.end(), rows, rows + count);
    const auto* bytes = static_cast<const unsigned char*>(values.data);
    mine_.values.insert(mine_.values.end(), bytes, bytes + values.bytes());
  }
  /// Records that the trainer has marked the whole gradient by mistake.
  void set_whole() { is_whole_ = true; }

  /// Returns the number of this rank's rows, or -1 if the rank has marked the whole gradient.
  int64_t Bring(const Parameter& parameter) {
    mine_ = AddedUp(mine_, parameter.row_length, parameter.value.dtype, 1);
    return is_whole_ ? -1 : static_cast<int64_t>(mine_.rows.size());
  }

  /// Starts gathering the rows of all ranks. `counts` has the number of rows by rank. Collective.
  void StartGather(
      Communicator& communicator, const Parameter& parameter, const Counts& counts,
      std::vector<Work>* works) {
    const uint64_t length = parameter.row_length;
    const DType dtype = parameter.value.dtype;
    const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    all_.rows.resize(total);
    all_.values.resize(total * length * SizeOf(dtype));
    Counts elements = counts;
    for (uint64_t& count : elements) count *= length;
    works->push_back(communicator.StartAllGather(
        Buffer(mine_.rows.data(), mine_.rows.size()), Buffer(all_.rows.data(), total), counts));
    works->push_back(communicator.StartAllGather(
        mine_.ValuesOf(length, dtype), all_.ValuesOf(length, dtype), elements));
  }
  /// Takes only this rank's own rows, without the other ranks.
  void TakeOwn(const Parameter& parameter) {
    all_ = AddedUp(mine_, parameter.row_length, parameter.value.dtype, 1);
  }

  /// Passes the sum of the gathered rows, times `factor`, to the parameter: to its gradient if that
  /// has memory, otherwise as rows. A gradient on a GPU is changed in host memory.
  void Give(Parameter& parameter, double factor) {
    const uint64_t length = parameter.row_length;
    all_ = AddedUp(all_, length, parameter.value.dtype, factor);
    const Buffer values = all_.ValuesOf(length, parameter.value.dtype);
    parameter.has_gradient = !all_.rows.empty();
    if (parameter.gradient.data == nullptr) {
      parameter.rows = {all_.rows.data(), all_.rows.size(), values};
      return;
    }
    const HostView gradient(parameter.gradient);
    auto* bytes = static_cast<unsigned char*>(gradient.buffer().data);
    const size_t row_bytes = length * SizeOf(parameter.value.dtype);
    for (const int64_t row : given_) std::memset(bytes + size_t(row) * row_bytes, 0, row_bytes);
    for (size_t k = 0; k < all_.rows.size(); ++k)
      std::memcpy(
          bytes + size_t(all_.rows[k]) * row_bytes, all_.values.data() + k * row_bytes, row_bytes);
    gradient.Write();
    given_ = all_.rows;
  }

  /// Clears this rank's rows before the next step.
  void Reset() {
    mine_ = RowList();
    is_whole_ = false;
  }

 private:
  size_t parameter_;
  bool is_local_;
  bool is_whole_ = false;
  RowList mine_, all_;
  std::vector<int64_t> given_;  // rows of the gradient that are not zero
};

/// Gathers the rows of all ranks, for all parameters that have rows. Throws kMismatch on all ranks
/// if a rank has marked a whole gradient. Collective.
inline void GatherRows(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    std::vector<RowGradients>& gradients) {
  std::vector<int64_t> mine;
  for (RowGradients& gradient : gradients)
    if (!gradient.is_local()) mine.push_back(gradient.Bring(parameters[gradient.parameter()]));
  const size_t size = static_cast<size_t>(communicator.size());
  std::vector<int64_t> all(mine.size() * size);
  if (!mine.empty())
    communicator.AllGather(Buffer(mine.data(), mine.size()), Buffer(all.data(), all.size()));
  std::vector<Counts> counts;
  for (RowGradients& gradient : gradients) {
    if (gradient.is_local()) continue;
    Counts of_ranks;
    std::vector<int> whole, by_rows;
    for (size_t rank = 0; rank < size; ++rank) {
      const int64_t count = all[rank * mine.size() + counts.size()];
      (count < 0 ? whole : by_rows).push_back(static_cast<int>(rank));
      of_ranks.push_back(count < 0 ? 0 : static_cast<uint64_t>(count));
    }
    if (!whole.empty())
      throw Error(
          ErrorCode::kMismatch,
          "parameter '" + parameters[gradient.parameter()].name +
              "' was marked with its whole gradient on " + RankList(whole) +
              (by_rows.empty() ? "" : " and by rows on " + RankList(by_rows)) +
              "; mark it with MarkRows() on all ranks, or set sparse_as_dense");
    counts.push_back(of_ranks);
  }
  std::vector<Work> works;
  size_t next = 0;
  for (RowGradients& gradient : gradients) {
    const Parameter& parameter = parameters[gradient.parameter()];
    if (gradient.is_local())
      gradient.TakeOwn(parameter);
    else
      gradient.StartGather(communicator, parameter, counts[next++], &works);
  }
  for (Work& work : works) work.Wait();
}

}  // namespace detail
}  // namespace dtrun

#endif

#ifndef DTRUN_DETAIL_REPLICA_VALUES_H_
#define DTRUN_DETAIL_REPLICA_VALUES_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtrun {

/// Numbers in a shape, row-major: the value of one replica, or the combined value of all replicas.
/// A single number has no dimensions.
///
///   Value<float>(0.5f)      Value<float>({1, 2, 3})      Value<float>({1, 2, 3, 4, 5, 6}, {3, 2})
template <typename T>
struct Value {
  static_assert(
      std::is_arithmetic_v<T> && !std::is_same_v<T, bool>,
      "dtrun: a Value holds numbers; use uint8_t for bool");

  std::vector<T> data;          ///< the numbers, row-major
  std::vector<uint64_t> shape;  ///< lengths along the dimensions; empty: a single number

  /// A single number, 0.
  Value() : data(1) {}
  /// A single number.
  Value(T number) : data{number} {}
  /// Numbers in one dimension.
  Value(std::vector<T> vector) : data(std::move(vector)), shape{data.size()} {}
  /// Numbers in the shape `dims`. kInvalidArgument: the product of `dims` is not data_in.size().
  Value(std::vector<T> data_in, std::vector<uint64_t> dims)
      : data(std::move(data_in)), shape(std::move(dims)) {
    const uint64_t count =
        std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
    if (count != data.size())
      throw Error(
          ErrorCode::kInvalidArgument, "a value of " + std::to_string(data.size()) +
                                           " numbers in a shape of " + std::to_string(count));
  }

  /// The number of a value with one element. kInvalidArgument: it has more, or none.
  T number() const {
    if (data.size() == 1) return data[0];
    throw Error(
        ErrorCode::kInvalidArgument,
        "a value of " + std::to_string(data.size()) + " numbers; expected one");
  }
};

namespace detail {

inline std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

/// The arguments of a replica for a reduction or a gather. The replicas compare them before
/// anything else is sent, so that a mistake on one replica is the same error on all replicas.
struct ValueCall {
  static constexpr int64_t kNoAxis = INT64_MIN;

  const char* name;  // for example "reduce"
  int64_t op = 0;    // a ReduceOp
  int64_t axis = kNoAxis;
  int64_t dtype = 0;
  std::vector<uint64_t> shape = {};

  std::vector<int64_t> Pack() const {
    std::vector<int64_t> words = {op, axis, dtype};
    for (const uint64_t dim : shape) words.push_back(static_cast<int64_t>(dim));
    return words;
  }
  static ValueCall Unpack(const char* name, const std::vector<int64_t>& words) {
    ValueCall call{name, words[0], words[1], words[2], {}};
    for (size_t i = 3; i < words.size(); ++i) call.shape.push_back(static_cast<uint64_t>(words[i]));
    return call;
  }

  std::string Text() const {
    return std::string(NameOf(static_cast<ReduceOp>(op))) + " of " +
           NameOf(static_cast<DType>(dtype)) + ShapeText(shape) +
           (axis == kNoAxis ? " over no axis" : " over axis " + std::to_string(axis));
  }
  // Equal except for the extent of the axis.
  bool Fits(const ValueCall& other) const {
    if (op != other.op || axis != other.axis || dtype != other.dtype ||
        shape.size() != other.shape.size())
      return false;
    for (size_t i = 0; i < shape.size(); ++i)
      if (static_cast<int64_t>(i) != axis && shape[i] != other.shape[i]) return false;
    return true;
  }
};

/// Returns the calls of all replicas in rank order. Collective. Throws on all replicas: kMismatch
/// (the calls differ), kInvalidArgument (an op other than sum or average, or an axis that the
/// values do not have).
inline std::vector<ValueCall> AgreeOnCall(Communicator& replicas, const ValueCall& mine) {
  std::vector<ValueCall> all;
  for (const std::vector<int64_t>& words : AllGatherObjects(replicas, mine.Pack()))
    all.push_back(ValueCall::Unpack(mine.name, words));
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (!all[rank].Fits(all[0]))
      throw Error(
          ErrorCode::kMismatch, std::string(mine.name) + ": replica 0 has a " + all[0].Text() +
                                    ", replica " + std::to_string(rank) + " a " + all[rank].Text());
  const auto op = static_cast<ReduceOp>(mine.op);
  if (op != ReduceOp::kSum && op != ReduceOp::kAverage)
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string(mine.name) + ": the op is " + NameOf(op) + "; expected sum or average");
  const auto dimensions = static_cast<int64_t>(mine.shape.size());
  if (mine.axis != ValueCall::kNoAxis && (mine.axis < 0 || mine.axis >= dimensions))
    throw Error(
        ErrorCode::kInvalidArgument, std::string(mine.name) + ": axis " +
                                         std::to_string(mine.axis) + " of values of the shape " +
                                         ShapeText(mine.shape) + "; expected one of its " +
                                         std::to_string(dimensions) + " dimensions");
  return all;
}

inline uint64_t Product(const std::vector<uint64_t>& dims, size_t begin, size_t end) {
  uint64_t product = 1;
  for (size_t i = begin; i < end; ++i) product *= dims[i];
  return product;
}

/// The type in which values of T are summed.
template <typename T>
using SumOf = std::conditional_t<
    std::is_floating_point_v<T>, double,
    std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;

/// Sums `value` over `axis`. The result's shape does not have that axis.
template <typename T>
std::vector<SumOf<T>> SumOverAxis(const Value<T>& value, size_t axis) {
  const uint64_t outer = Product(value.shape, 0, axis), extent = value.shape[axis];
  const uint64_t inner = Product(value.shape, axis + 1, value.shape.size());
  std::vector<SumOf<T>> sums(outer * inner);
  for (uint64_t o = 0; o < outer; ++o)
    for (uint64_t k = 0; k < extent; ++k)
      for (uint64_t i = 0; i < inner; ++i)
        sums[o * inner + i] += static_cast<SumOf<T>>(value.data[(o * extent + k) * inner + i]);
  return sums;
}

template <typename T>
Value<T> ReduceElements(Communicator& replicas, ReduceOp op, Value<T> value) {
  AgreeOnCall(
      replicas, {"reduce", static_cast<int64_t>(op), ValueCall::kNoAxis,
                 static_cast<int64_t>(DTypeOf<T>()), value.shape});
  replicas.AllReduce(Buffer(value.data.data(), value.data.size()), op);
  return value;
}

/// The mean divides by the actual number of examples of all replicas.
template <typename T>
Value<T> ReduceOverAxis(Communicator& replicas, ReduceOp op, const Value<T>& value, int axis) {
  const std::vector<ValueCall> all = AgreeOnCall(
      replicas,
      {"reduce", static_cast<int64_t>(op), axis, static_cast<int64_t>(DTypeOf<T>()), value.shape});
  const auto dimension = static_cast<size_t>(axis);
  uint64_t extent = 0;
  for (const ValueCall& call : all) extent += call.shape[dimension];
  if (op == ReduceOp::kAverage && extent == 0)
    throw Error(
        ErrorCode::kInvalidArgument, "reduce: the mean over axis " + std::to_string(axis) +
                                         ": found no elements on any replica");
  std::vector<SumOf<T>> sums = SumOverAxis(value, dimension);
  replicas.AllReduce(Buffer(sums.data(), sums.size()), ReduceOp::kSum);
  Value<T> result;
  result.data.clear();
  for (const SumOf<T> sum : sums)
    result.data.push_back(
        static_cast<T>(op == ReduceOp::kAverage ? sum / static_cast<SumOf<T>>(extent) : sum));
  result.shape = value.shape;
  result.shape.erase(result.shape.begin() + axis);
  return result;
}

/// Concatenates the values of all replicas along `axis`, in rank order.
template <typename T>
Value<T> GatherAlong(Communicator& replicas, const Value<T>& value, int axis) {
  const std::vector<ValueCall> all =
      AgreeOnCall(replicas, {"gather", 0, axis, static_cast<int64_t>(DTypeOf<T>()), value.shape});
  const std::vector<T> data = AllGatherV(replicas, value.data).data;
  const auto dimension = static_cast<size_t>(axis);
  Value<T> result;
  result.data.resize(data.size());
  result.shape = value.shape;
  result.shape[dimension] = 0;
  for (const ValueCall& call : all) result.shape[dimension] += call.shape[dimension];
  const uint64_t outer = Product(value.shape, 0, dimension);
  const uint64_t inner = Product(value.shape, dimension + 1, value.shape.size());
  const T* from = data.data();
  uint64_t before = 0;  // along the axis
  for (const ValueCall& call : all) {
    const uint64_t run = call.shape[dimension] * inner;
    for (uint64_t o = 0; o < outer; ++o, from += run)
      std::copy(
          from, from + run, result.data.data() + (o * result.shape[dimension] + before) * inner);
    before += call.shape[dimension];
  }
  return result;
}

}  // namespace detail
}  // namespace dtrun

#endif

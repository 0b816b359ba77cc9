#ifndef DTRUN_OBJECTS_H_
#define DTRUN_OBJECTS_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace dtrun {

/// Vectors of different lengths from every rank, concatenated in rank order.
template <typename T>
struct Gathered {
  std::vector<T> data;  ///< elements of rank 0, then of rank 1, and so on
  Counts counts;        ///< elements of each rank
};

/// Received elements from every rank, concatenated in rank order.
template <typename T>
struct Exchanged {
  std::vector<T> data;  ///< elements from rank 0, then from rank 1, and so on
  Counts splits;        ///< elements from each rank
};

namespace detail {

template <typename T>
Buffer BufferOf(std::vector<T>& values) {
  static_assert(
      !std::is_same_v<T, bool>, "dtrun: vector<bool> has no elements in memory; use uint8_t");
  return Buffer(values.data(), values.size());
}

inline uint64_t Sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

}  // namespace detail

/// Gathers the vectors of all ranks. Their lengths may differ. Collective; all ranks use the same
/// T.
///
///   rank 0: {1, 2}   rank 1: {3}   AllGatherV  ->  both data {1, 2, 3}, counts {2, 1}
template <typename T>
Gathered<T> AllGatherV(Communicator& communicator, std::vector<T> mine) {
  Gathered<T> all;
  all.counts = communicator.AllGatherCounts(mine.size());
  all.data.resize(detail::Sum(all.counts));
  communicator.AllGather(detail::BufferOf(mine), detail::BufferOf(all.data), all.counts);
  return all;
}

/// Sends the first splits[0] elements of `data` to rank 0, the next splits[1] elements to rank 1
/// and so on. Returns the elements sent to this rank. Collective; all ranks use the same T. Throws
/// kInvalidArgument unless there is a split for every rank and the splits add up to data.size().
///
///   rank 0: {1, 2, 3}, splits {1, 2}       rank 0: data {1}, splits {1, 0}
///   rank 1: {4, 5}, splits {0, 2}      ->  rank 1: data {2, 3, 4, 5}, splits {2, 2}
template <typename T>
Exchanged<T> AllToAllV(Communicator& communicator, std::vector<T> data, const Counts& splits) {
  if (detail::Sum(splits) != data.size()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "all_to_all: the input has " + std::to_string(data.size()) + " elements; expected " +
            std::to_string(detail::Sum(splits)) + " (the sum of the splits)");
  }
  Exchanged<T> received;
  received.splits = communicator.ExchangeSplits(splits);
  received.data.resize(detail::Sum(received.splits));
  communicator.AllToAll(
      detail::BufferOf(data), detail::BufferOf(received.data), splits, received.splits);
  return received;
}

/// Returns the bytes of rank `root` on every rank: for example, a serialised configuration, a
/// checkpoint, an optimizer's state. The argument of other ranks is ignored. Collective.
///
///   rank 0: "lr=0.1"   rank 1: ""   BroadcastBytes(root 0)  ->  both "lr=0.1"
inline std::string BroadcastBytes(
    Communicator& communicator, const std::string& bytes, int root = 0) {
  dtrun_memory* received = nullptr;
  detail::Check(
      dtrun_broadcast_bytes(communicator.handle(), bytes.data(), bytes.size(), root, &received));
  const Memory memory(received);
  return std::string(static_cast<const char*>(memory.data()), memory.bytes());
}

/// Returns the elements of rank `root` on every rank. The argument of other ranks is ignored. T is
/// copied byte by byte. Collective; all ranks use the same T.
template <typename T>
std::vector<T> BroadcastV(
    Communicator& communicator, const std::vector<T>& elements, int root = 0) {
  static_assert(std::is_trivially_copyable_v<T>, "dtrun: T has to be trivially copyable");
  static_assert(
      !std::is_same_v<T, bool>, "dtrun: vector<bool> has no elements in memory; use uint8_t");
  dtrun_memory* received = nullptr;
  detail::Check(dtrun_broadcast_bytes(
      communicator.handle(), elements.data(), elements.size() * sizeof(T), root, &received));
  const Memory memory(received);
  std::vector<T> result(memory.bytes() / sizeof(T));
  if (!result.empty()) std::memcpy(result.data(), memory.data(), memory.bytes());
  return result;
}

/// Returns the bytes of every rank, in rank order. Their lengths may differ. Collective.
///
///   rank 0: "ok"   rank 1: ""   AllGatherBytes  ->  both {"ok", ""}
inline std::vector<std::string> AllGatherBytes(
    Communicator& communicator, const std::string& bytes) {
  const Gathered<uint8_t> all =
      AllGatherV(communicator, std::vector<uint8_t>(bytes.begin(), bytes.end()));
  std::vector<std::string> result;
  const auto* next = reinterpret_cast<const char*>(all.data.data());
  for (const uint64_t count : all.counts) {
    result.emplace_back(next, next + count);
    next += count;
  }
  return result;
}

/// Returns the vectors of every rank, in rank order. Their lengths may differ. T is copied byte by
/// byte. Collective; all ranks use the same T.
///
///   rank 0: {{1, 0.5f}}   rank 1: {}   AllGatherObjects  ->  both {{{1, 0.5f}}, {}}
template <typename T>
std::vector<std::vector<T>> AllGatherObjects(
    Communicator& communicator, const std::vector<T>& objects) {
  static_assert(std::is_trivially_copyable_v<T>, "dtrun: T has to be trivially copyable");
  static_assert(
      !std::is_same_v<T, bool>, "dtrun: vector<bool> has no elements in memory; use uint8_t");
  std::string bytes(objects.size() * sizeof(T), '\0');
  if (!objects.empty()) std::memcpy(&bytes[0], objects.data(), bytes.size());
  std::vector<std::vector<T>> result;
  for (const std::string& one : AllGatherBytes(communicator, bytes)) {
    result.emplace_back(one.size() / sizeof(T));
    if (!one.empty()) std::memcpy(result.back().data(), one.data(), one.size());
  }
  return result;
}

/// Returns the list of strings of every rank, in rank order. Collective.
inline std::vector<std::vector<std::string>> AllGatherStrings(
    Communicator& communicator, const std::vector<std::string>& strings) {
  std::vector<uint64_t> lengths;
  std::string text;
  for (const std::string& one : strings) lengths.push_back(one.size()), text += one;
  const std::vector<std::vector<uint64_t>> all = AllGatherObjects(communicator, lengths);
  const std::vector<std::string> texts = AllGatherBytes(communicator, text);
  std::vector<std::vector<std::string>> result(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    size_t begin = 0;
    for (const uint64_t length : all[rank]) {
      result[rank].push_back(texts[rank].substr(begin, length));
      begin += length;
    }
  }
  return result;
}

}  // namespace dtrun

#endif

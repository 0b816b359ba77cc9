#ifndef DTRUN_DETAIL_GRADIENT_CHECKS_H_
#define DTRUN_DETAIL_GRADIENT_CHECKS_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

// Checks of DistributedOptimizer. Internal.

namespace dtrun {
namespace detail {

/// 64-bit FNV-1a over words of eight bytes and the remaining bytes. Elements on a GPU go through
/// host memory.
inline uint64_t DigestOf(const Buffer& elements) {
  const HostView view(elements);
  const Buffer& buffer = view.buffer();
  uint64_t digest = 0xcbf29ce484222325u;
  const auto* bytes = static_cast<const unsigned char*>(buffer.data);
  uint64_t i = 0;
  for (uint64_t word; i + sizeof word <= buffer.bytes(); i += sizeof word) {
    std::memcpy(&word, bytes + i, sizeof word);
    digest = (digest ^ word) * 0x100000001b3u;
    digest ^= digest >> 32;
  }
  for (; i < buffer.bytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3u;
  return digest;
}

/// "rank 1", "ranks 0, 2"
inline std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

/// Throws kMismatch on all ranks unless all ranks pass the same text. Collective.
inline void CheckSameText(
    Communicator& communicator, const std::string& what, const std::string& mine) {
  std::map<std::string, std::vector<int>> sides;
  int rank = 0;
  for (const std::string& text : AllGatherBytes(communicator, mine)) sides[text].push_back(rank++);
  if (sides.size() == 1) return;
  std::string listing;
  for (const auto& side : sides)
    listing += (listing.empty() ? "" : "; ") + side.first + " on " + RankList(side.second);
  throw Error(ErrorCode::kMismatch, "the ranks have different " + what + ": " + listing);
}

/// Throws kMismatch on all ranks if a rank has found an infinite or NaN gradient. `found` is the
/// index of its parameter. `when` ends the text, for example " in step 7". Collective.
inline void CheckFinite(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    std::optional<size_t> found, const std::string& when) {
  int64_t mine = found ? static_cast<int64_t>(*found) : int64_t{-1};
  std::vector<int64_t> all(static_cast<size_t>(communicator.size()));
  communicator.AllGather(Buffer(&mine, 1), Buffer(all.data(), all.size()));
  const auto first = std::find_if(all.begin(), all.end(), [](int64_t i) { return i >= 0; });
  if (first == all.end()) return;
  std::vector<int> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == *first) ranks.push_back(static_cast<int>(rank));
  throw Error(
      ErrorCode::kMismatch, "the gradient of '" + parameters[static_cast<size_t>(*first)].name +
                                "' is infinite or NaN on " + RankList(ranks) + when);
}

/// Throws kMismatch on all ranks unless the values of the parameters `which` are the same on all
/// ranks. Collective.
inline void CheckSameValues(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    const std::vector<size_t>& which, const std::string& when) {
  std::vector<uint64_t> mine;
  for (const size_t i : which) mine.push_back(DigestOf(parameters[i].value));
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(communicator.size()));
  communicator.AllGather(Buffer(mine.data(), mine.size()), Buffer(all.data(), all.size()));
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<int> others;
    for (size_t rank = 0; rank * mine.size() < all.size(); ++rank)
      if (all[rank * mine.size() + i] != all[i]) others.push_back(static_cast<int>(rank));
    if (others.empty()) continue;
    throw Error(
        ErrorCode::kMismatch, "parameter '" + parameters[which[i]].name + "' of " +
                                  RankList(others) + " differs from rank 0" + when);
  }
}

// Clipping of DistributedOptimizer. Internal.

/// Clips gradients so that their common norm is at most `most`. `scale`: the loss scale; the norms
/// are those of the gradients divided by it. Returns the norm before clipping.
inline double ClipByNorm(const std::vector<Buffer>& gradients, double most, double scale = 1) {
  double squares = 0;
  for (const double each : SquaredNorms(gradients)) squares += each;
  const double norm = std::sqrt(squares) / scale;
  if (norm > most)
    for (const Buffer& gradient : gradients) Multiply(gradient, most / (norm + 1e-6));
  return norm;
}

// Checks of the parameter list of a DistributedOptimizer. Internal.

[[noreturn]] inline void Refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "DistributedOptimizer: " + text);
}

/// Checks that names are unique: errors and other ranks identify parameters by their names.
inline void CheckNames(const std::vector<Parameter>& parameters) {
  std::unordered_map<std::string, size_t> first;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    if (name.empty())
      Refuse("parameter " + std::to_string(i) + " has no name; every parameter needs one");
    const auto found = first.emplace(name, i);
    if (!found.second)
      Refuse(
          "parameters " + std::to_string(found.first->second) + " and " + std::to_string(i) +
          " are both called '" + name + "'; every parameter needs a name of its own");
  }
}

/// Checks that a row_length divides the parameter, and that the parameter is f32 or f64.
inline void CheckRows(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    if (parameter.row_length == 0) continue;
    const std::string what = "parameter '" + parameter.name + "' has rows of " +
                             std::to_string(parameter.row_length) + " elements";
    if (parameter.value.count % parameter.row_length != 0)
      Refuse(what + " but " + std::to_string(parameter.value.count) + "; expected whole rows");
    const DType dtype = parameter.value.dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64)
      Refuse(what + " of " + NameOf(dtype) + "; expected f32 or f64");
  }
}

/// For each parameter, returns the first parameter with the same memory (tied weights). For a
/// parameter without ties, this is the parameter itself. Throws if two parameters share only a part
/// of their memory.
inline std::vector<size_t> FirstOfTied(const std::vector<Parameter>& parameters) {
  std::vector<size_t> first(parameters.size()), order;
  std::iota(first.begin(), first.end(), size_t{0});
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].value.data != nullptr && parameters[i].value.count > 0) order.push_back(i);
  const auto begin = [&](size_t i) {
    return reinterpret_cast<uintptr_t>(parameters[i].value.data);
  };
  std::stable_sort(
      order.begin(), order.end(), [&](size_t a, size_t b) { return begin(a) < begin(b); });
  for (size_t k = 1; k < order.size(); ++k) {
    const size_t a = first[order[k - 1]], b = order[k];
    const Buffer &one = parameters[a].value, &other = parameters[b].value;
    if (begin(a) + one.bytes() <= begin(b)) continue;
    if (one.data != other.data || one.count != other.count || one.dtype != other.dtype)
      Refuse(
          "parameters '" + parameters[std::min(a, b)].name + "' and '" +
          parameters[std::max(a, b)].name +
          "' share a part of their memory; expected all of it (tied weights) or none");
    first[b] = a;
  }
  return first;
}

/// Gives tied parameters one gradient: the memory that one of them has, or no memory yet.
inline void TieGradients(std::vector<Parameter>& parameters, const std::vector<size_t>& first) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    Buffer& mine = parameters[i].gradient;
    Buffer& shared = parameters[first[i]].gradient;
    if (shared.data == nullptr) shared = mine;
    if (mine.data != nullptr && mine.data != shared.data)
      Refuse(
          "the tied parameters '" + parameters[first[i]].name + "' and '" + parameters[i].name +
          "' have different memory for their gradients; give them the same, or none");
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].gradient = parameters[first[i]].gradient;
}

/// Removes all but the first of tied parameters from `reduced`. Returns 1 for each parameter that
/// was not in `reduced`, else 0. Throws if only one of two tied parameters was in `reduced`.
inline std::vector<uint8_t> LocalOf(
    const std::vector<Parameter>& parameters, const std::vector<size_t>& first,
    std::vector<size_t>& reduced) {
  std::vector<uint8_t> is_local(parameters.size(), 1);
  for (const size_t i : reduced) is_local[i] = 0;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (is_local[i] != is_local[first[i]])
      Refuse(
          "of the tied parameters '" + parameters[first[i]].name + "' and '" + parameters[i].name +
          "' one is in local_parameters; expected both or none");
  reduced.erase(
      std::remove_if(reduced.begin(), reduced.end(), [&](size_t i) { return first[i] != i; }),
      reduced.end());
  return is_local;
}

/// Returns "a", or "a' and 'b" for tied parameters: the callers put the result in quotes.
inline std::string NamesOf(
    const std::vector<Parameter>& parameters, const std::vector<size_t>& first, size_t i) {
  std::string names;
  for (size_t k = 0; k < parameters.size(); ++k)
    if (first[k] == first[i]) names += (names.empty() ? "" : "' and '") + parameters[k].name;
  return names;
}

}  // namespace detail
}  // namespace dtrun

#endif  // DTRUN_DETAIL_GRADIENT_CHECKS_H_

#ifndef DTRUN_PARAMETER_LIST_H_
#define DTRUN_PARAMETER_LIST_H_

#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

// What DistributedOptimizer demands of a list of parameters; not for trainers.

namespace dtrun {
namespace detail {

[[noreturn]] inline void Refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "DistributedOptimizer: " + text);
}

/// Errors and the other ranks know parameters by their names.
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

/// A row_length divides the parameter, whose elements are f32 or f64.
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

/// For each parameter the first of those that have its memory (tied weights), itself where it is
/// alone. Throws if two parameters share a part of their memory.
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

/// Tied parameters have one gradient: the memory that one of them brings, or none yet.
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

/// Takes all but the first of tied parameters out of `reduced`, and returns, for each parameter, 1
/// if it was not in it. Throws if tied parameters differ in that.
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

/// "a", or "a' and 'b" where they are tied: texts put it in quotes.
inline std::string NamesOf(
    const std::vector<Parameter>& parameters, const std::vector<size_t>& first, size_t i) {
  std::string names;
  for (size_t k = 0; k < parameters.size(); ++k)
    if (first[k] == first[i]) names += (names.empty() ? "" : "' and '") + parameters[k].name;
  return names;
}

}  // namespace detail
}  // namespace dtrun

#endif

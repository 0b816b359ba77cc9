#ifndef DTRUN_DETAIL_TOGETHER_H_
#define DTRUN_DETAIL_TOGETHER_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

// Errors of one rank in strategies. Internal.

namespace dtrun {
namespace detail {

/// Calls `body`, which does not communicate. If it throws on some ranks, all ranks throw the error
/// of the first of them. Unless all ranks have that error, the text lists the ranks that have it,
/// each as a `word`. Collective.
template <typename Body>
void ThrowTogether(Communicator& communicator, const std::string& word, const Body& body) {
  int code = 0;
  std::string text;
  try {
    body();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    text = error.what();
  } catch (const std::exception& error) {
    code = static_cast<int>(ErrorCode::kSystem);
    text = error.what();
  }
  const std::vector<std::string> all =
      AllGatherBytes(communicator, code == 0 ? "" : std::to_string(code) + " " + text);
  std::string first;
  for (const std::string& each : all)
    if (first.empty()) first = each;
  if (first.empty()) return;
  std::string names;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == first) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  const auto alike = static_cast<size_t>(std::count(all.begin(), all.end(), first));
  const size_t space = first.find(' ');
  const std::string prefix =
      alike == all.size() ? "" : word + (alike == 1 ? " " : "s ") + names + ": ";
  throw Error(
      static_cast<ErrorCode>(std::stoi(first.substr(0, space))), prefix + first.substr(space + 1));
}

}  // namespace detail
}  // namespace dtrun

#endif

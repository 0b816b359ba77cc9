#ifndef DTRUN_TESTS_FUZZ_REFUSED_H_
#define DTRUN_TESTS_FUZZ_REFUSED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "dtrun/error.h"
#include "launcher/support/launch_error.h"

// Common parts of the fuzz targets. scripts/fuzz builds and runs the targets.

/// Defines a target: a function that runs on each input, `size` bytes at `data`. The function
/// returns 0, or ends the program at a defect.
///
///   FUZZ_TARGET(words) {
///     fuzz::Expect(...);
///     return 0;
///   }
#define FUZZ_TARGET(name)                                          \
  static int name##_target(const uint8_t* data, size_t size);      \
  [[maybe_unused]] static const bool name##_target_is_known =      \
      dtrun::fuzz::Targets().emplace(#name, name##_target).second; \
  static int name##_target(const uint8_t* data, size_t size)

namespace dtrun::fuzz {

using Target = int (*)(const uint8_t* data, size_t size);

/// The targets of this program by name: all targets in corpus_test, one target with libFuzzer.
inline std::map<std::string, Target>& Targets() {
  static std::map<std::string, Target> targets;
  return targets;
}

inline std::string TextOf(const uint8_t* data, size_t size) {
  return std::string(reinterpret_cast<const char*>(data), size);
}

inline void Expect(bool holds) {
  if (!holds) std::abort();
}

/// Runs a parser, which accepts its input or refuses it with an error. Any other exception ends the
/// program, and so does an error that is empty or longer than `longest_answer`.
template <typename Parse>
void TakesOrRefuses(const Parse& parse, size_t longest_answer = 1000) {
  const auto check = [&](const std::string& said) {
    Expect(!said.empty() && said.size() <= longest_answer);
  };
  try {
    parse();
  } catch (const launcher::LaunchError& error) {
    check(error.what());
  } catch (const Error& error) {
    check(error.what());
  }
}

}  // namespace dtrun::fuzz

#endif

#ifndef DTRUN_TESTS_LAUNCHER_SURROUNDINGS_H_
#define DTRUN_TESTS_LAUNCHER_SURROUNDINGS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/command_line.h"
#include "launcher/plan/job_options.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

using Texts = std::map<std::string, std::string>;

/// The files and variables of one test.
inline Surroundings Around(const Texts& files, const Texts& variables = {}) {
  return {
      [files](const std::string& path) {
        if (!files.contains(path)) throw UsageError(path + ": No such file or directory");
        return files.at(path);
      },
      [variables](const std::string& name) {
        return variables.contains(name) ? std::optional(variables.at(name)) : std::nullopt;
      }};
}

inline Options OptionsOf(
    const std::vector<std::string>& line, const Texts& files = {}, const Texts& variables = {}) {
  return ReadRequest(line, Around(files, variables)).options;
}

}  // namespace dtrun::launcher

#endif

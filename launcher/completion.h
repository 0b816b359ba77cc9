#ifndef DTRUN_LAUNCHER_COMPLETION_H_
#define DTRUN_LAUNCHER_COMPLETION_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// A script that teaches bash to complete dtrun's options, their values and the program's name.
/// After `dtrun doctor` only `doctor_options` are options.
std::string BashCompletion(const std::vector<std::string>& doctor_options);

}  // namespace dtrun::launcher

#endif

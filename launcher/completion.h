#ifndef DTRUN_LAUNCHER_COMPLETION_H_
#define DTRUN_LAUNCHER_COMPLETION_H_

#include <string>

namespace dtrun::launcher {

/// A script that teaches bash to complete dtrun's options, their values and the program's name.
std::string BashCompletion();

}  // namespace dtrun::launcher

#endif

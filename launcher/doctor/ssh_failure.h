#ifndef DTRUN_LAUNCHER_DOCTOR_SSH_FAILURE_H_
#define DTRUN_LAUNCHER_DOCTOR_SSH_FAILURE_H_

#include <string>

#include "launcher/doctor/findings.h"

namespace dtrun::launcher {

/// Why the probe, file `probe`, did not greet on `host`: ssh, or the shell there, has written
/// `complaint` to stderr and ended with `exit_code`.
Finding FailureOf(
    const std::string& host, const std::string& probe, const std::string& complaint, int exit_code);

/// The last line says why; those before it are banners.
std::string LastLineOf(const std::string& text);

}  // namespace dtrun::launcher

#endif

#ifndef DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_
#define DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "launcher/plan/job_options.h"

namespace dtrun::launcher {

/// What `dtrun doctor` prints and exits with.
struct DoctorResult {
  std::string text;
  int exit_code;
};

/// `arguments` are the words after "doctor". Throws LaunchError.
DoctorResult RunDoctor(const std::vector<std::string>& arguments, const Surroundings& surroundings);

/// What `dtrun doctor` was asked.
struct DoctorRequest {
  bool help = false;
  Options options;  ///< the program is options.program[0], if there is one
};

/// Understands the words after "doctor". A configuration file may hold all that a job takes.
/// Throws UsageError, also for options that a job takes and doctor does not.
DoctorRequest ReadDoctorRequest(
    const std::vector<std::string>& arguments, const Surroundings& surroundings);

/// What `dtrun doctor --help` prints.
std::string DoctorHelp();

/// The options that doctor takes, in all spellings.
std::vector<std::string> DoctorSpellings();

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_

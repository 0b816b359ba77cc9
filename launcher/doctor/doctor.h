#ifndef DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_
#define DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "launcher/plan/job_options.h"

namespace dtrun::launcher {

/// The output and the exit code of `dtrun doctor`.
struct DoctorResult {
  std::string text;
  int exit_code;
};

/// Checks the hosts. `arguments` are the words after "doctor". Throws LaunchError.
DoctorResult RunDoctor(const std::vector<std::string>& arguments, const Surroundings& surroundings);

/// The parsed arguments of `dtrun doctor`.
struct DoctorRequest {
  bool help = false;
  Options options;  ///< options.program[0] is the program to check, if there is one
};

/// Parses the words after "doctor". A configuration file may hold any option of a job. Throws
/// UsageError, also for an option on the command line that doctor does not take.
DoctorRequest ReadDoctorRequest(
    const std::vector<std::string>& arguments, const Surroundings& surroundings);

/// The output of `dtrun doctor --help`.
std::string DoctorHelp();

/// The options of doctor, in all spellings.
std::vector<std::string> DoctorSpellings();

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_

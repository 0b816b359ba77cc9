#ifndef DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_
#define DTRUN_LAUNCHER_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "launcher/host_sources.h"

namespace dtrun::launcher {

/// What `dtrun doctor` prints and exits with.
struct DoctorResult {
  std::string text;
  int exit_code;
};

/// `arguments` are the words after "doctor". Throws LaunchError.
DoctorResult RunDoctor(const std::vector<std::string>& arguments, const Surroundings& surroundings);

}  // namespace dtrun::launcher

#endif

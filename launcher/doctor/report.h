#ifndef DTRUN_LAUNCHER_DOCTOR_REPORT_H_
#define DTRUN_LAUNCHER_DOCTOR_REPORT_H_

#include <string>
#include <vector>

#include "launcher/doctor/findings.h"

namespace dtrun::launcher {

/// A host's look and what is wrong with it.
struct Diagnosis {
  HostLook look;
  std::vector<Finding> findings;
};

/// A table with a line for each host, then a line for each finding, then the verdict. `here` is
/// this machine, whose Open MPI and program the others were compared with.
std::string DoctorText(const std::vector<Diagnosis>& hosts, const HostLook& here);

/// All that is known, as JSON.
std::string DoctorJson(const std::vector<Diagnosis>& hosts, const HostLook& here);

/// No host would stop a job.
bool AllReady(const std::vector<Diagnosis>& hosts);

}  // namespace dtrun::launcher

#endif

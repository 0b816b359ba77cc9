#ifndef DTRUN_LAUNCHER_DOCTOR_DIAGNOSIS_H_
#define DTRUN_LAUNCHER_DOCTOR_DIAGNOSIS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/doctor/host_facts.h"

namespace dtrun::launcher {

/// Something that is not as it should be on a host.
struct Finding {
  bool stops_job;  ///< else it is a warning
  std::string thing;
  std::string found;
  std::string expected;
  std::string advice;  ///< what to do; "": the rest says it

  bool operator==(const Finding&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, stops_job, thing, found, expected, advice)

/// What was seen of a host.
struct HostLook {
  std::string host;                 ///< as the user calls it
  int slots = 0;                    ///< ranks that it was said to take; 0: nobody said
  std::string address;              ///< at which it was reached; "": this machine, or it was not
  std::vector<Finding> reach = {};  ///< what was in the way to it
  bool answered = false;            ///< the rest is known
  HostFacts facts = {};
  double clock_offset_s = 0;  ///< its clock minus this machine's
  double clock_uncertainty_s = 0;
};

/// All that is wrong with the host, the worst first. `here` is this machine, from which jobs start:
/// other hosts have to have the same Open MPI and the same program.
std::vector<Finding> FindingsOf(const HostLook& look, const HostLook& here);

bool StopsJob(const std::vector<Finding>& findings);

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

#endif  // DTRUN_LAUNCHER_DOCTOR_DIAGNOSIS_H_

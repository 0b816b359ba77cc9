#ifndef DTRUN_LAUNCHER_DOCTOR_MACHINE_H_
#define DTRUN_LAUNCHER_DOCTOR_MACHINE_H_

#include "launcher/doctor/host_facts.h"

namespace dtrun::launcher {

/// Of this machine, for a process that runs like this one.
CpuFacts OwnCpus();
MemoryFacts OwnMemory();

}  // namespace dtrun::launcher

#endif

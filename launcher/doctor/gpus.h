#ifndef DTRUN_LAUNCHER_DOCTOR_GPUS_H_
#define DTRUN_LAUNCHER_DOCTOR_GPUS_H_

#include <vector>

#include "launcher/doctor/host_facts.h"

namespace dtrun::launcher {

/// NVIDIA's GPUs of this machine, as its driver's library (libnvidia-ml.so.1) tells them; none
/// where there is no such library.
std::vector<GpuFacts> OwnGpus();

}  // namespace dtrun::launcher

#endif

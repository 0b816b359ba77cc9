#ifndef DTRUN_MODELS_PROGRAM_NAMED_GPUS_H_
#define DTRUN_MODELS_PROGRAM_NAMED_GPUS_H_

#include <dtrun/device_choice.h>

#include <string>
#include <vector>

namespace dtrun::models {

/// GPUs that stand behind a strategy's name: "mirrored:cuda:0,cuda:1". A strategy itself has its
/// variables in host memory; who trains on GPUs takes these, and makes a strategy without devices.
struct NamedGpus {
  std::string spec, strategy;   ///< as given, and "mirrored"
  std::vector<Device> devices;  ///< by local rank; none: this is about the CPU, or no such list

  explicit operator bool() const { return !devices.empty(); }
};

/// Of one_device and mirrored; for others, and lists without a GPU, none. Throws Error
/// kInvalidArgument for a list of GPUs and other devices.
NamedGpus GpusNamedIn(const std::string& strategy);

/// What ChooseDevice goes by on this rank, besides the GPUs that there are. Throws Error
/// kInvalidArgument for another number of GPUs than ranks on this host.
DeviceChoiceInput WishOf(const NamedGpus& gpus, int local_rank, int local_size);

}  // namespace dtrun::models

#endif

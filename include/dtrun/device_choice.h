#ifndef DTRUN_DEVICE_CHOICE_H_
#define DTRUN_DEVICE_CHOICE_H_

#include <dtrun/detail/device.h>
#include <dtrun/error.h>

#include <string>

namespace dtrun {

/// The input of ChooseDevice. Pure data: it can describe any machine.
struct DeviceChoiceInput {
  std::string wish = "auto";  ///< auto, cpu, cuda or cuda:N
  int local_rank = 0;         ///< number of this rank on its host, from 0
  int local_size = 1;         ///< ranks on this host
  int device_count = 0;       ///< GPUs that each rank may use: CudaDeviceCount
  std::string why_no_gpu;     ///< if device_count is 0
  bool share_gpus = false;    ///< several ranks may use one requested GPU
};

/// The device of this rank.
struct DeviceChoice {
  Device device;    ///< the CPU, or a GPU of this host
  int sharers = 1;  ///< ranks of this host on that GPU, this rank included
};

/// Chooses the device of a rank. Ranks of a host get one GPU each, by local rank. If there are more
/// ranks than GPUs, ranks share GPUs evenly: with `auto` always, with `cuda` only if `share_gpus`
/// is true. `auto` without a GPU is the CPU.
///
/// Throws Error kInvalidArgument for an unknown wish, a GPU that does not exist, or more ranks than
/// GPUs without sharing. Throws kUnavailable, with the reason, if the wish is a GPU and there is
/// none.
///
///   8 ranks, 2 GPUs, auto:  local rank 5 -> cuda:1, of which it is one of 4 sharers
inline DeviceChoice ChooseDevice(const DeviceChoiceInput& input) {
  DeviceChoice choice;
  const bool any = input.wish == "cuda";
  const bool automatic = input.wish == "auto";
  if (!any && !automatic) choice.device = ParseDevice(input.wish);
  if (!any && !automatic && choice.device.kind == DeviceKind::kCpu) return choice;
  const int count = input.device_count;
  if (count < 1) {
    if (automatic) return DeviceChoice();
    throw Error(ErrorCode::kUnavailable, "device " + input.wish + ": " + input.why_no_gpu);
  }
  choice.device.kind = DeviceKind::kCuda;
  if (any || automatic) {
    choice.device.index = input.local_rank % count;
    choice.sharers = (input.local_size - choice.device.index + count - 1) / count;
  } else {
    choice.sharers = input.local_size;
  }
  if (choice.device.index >= count) {
    throw Error(
        ErrorCode::kInvalidArgument, "device " + input.wish + ": this host has " +
                                         std::to_string(count) + (count == 1 ? " GPU" : " GPUs") +
                                         ", counted from 0");
  }
  const bool one_each = any ? input.local_size <= count : input.local_size == 1;
  if (!automatic && !one_each && !input.share_gpus) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "device " + input.wish + ": " + std::to_string(input.local_size) +
            " ranks on a host with " + std::to_string(any ? count : 1) +
            (any && count > 1 ? " GPUs" : " GPU") +
            " for them; expected one for each rank, or --share-gpus");
  }
  return choice;
}

}  // namespace dtrun

#endif

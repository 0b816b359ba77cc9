#ifndef DTRUN_DETAIL_DEVICE_H_
#define DTRUN_DETAIL_DEVICE_H_

#include <dtrun/context.h>
#include <dtrun/detail/c_device.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace dtrun {

/// The kind of a device.
enum class DeviceKind {
  kCpu,   ///< all CPUs of the host together
  kCuda,  ///< a GPU
  kTpu    ///< a TPU: no replica computes on it (CheckDevice)
};

/// A device of a replica: its kind, and its number on the host. The names are "cpu" and, for
/// example, "cuda:1".
struct Device {
  DeviceKind kind = DeviceKind::kCpu;  ///< the kind of the device
  int index = 0;                       ///< number of the device on the host, from 0

  /// True if kind and index are equal.
  bool operator==(const Device& other) const { return kind == other.kind && index == other.index; }

  /// "cpu" is any of the host's CPUs. The launcher assigns CPUs to ranks.
  std::string name() const {
    if (kind == DeviceKind::kCpu) return "cpu";
    return (kind == DeviceKind::kCuda ? "cuda:" : "tpu:") + std::to_string(index);
  }
};

/// True for "gpu:*" and "cuda:*", which name a GPU for each replica of a host.
inline bool IsAnyGpu(const std::string& name) { return name == "gpu:*" || name == "cuda:*"; }

/// Parses the name of a device: "cpu", "cpu:0", "cuda:N", or the TensorFlow names "/cpu:0" and
/// "/gpu:N" ("GPU:N"). kInvalidArgument for any other name.
inline Device ParseDevice(const std::string& name) {
  std::string text = name;
  if (!text.empty() && text[0] == '/') text.erase(0, 1);
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (text.compare(0, 7, "device:") == 0) text.erase(0, 7);
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string number = colon == std::string::npos ? "0" : text.substr(colon + 1);
  const bool is_number = !number.empty() && number.size() < 5 &&
                         number.find_first_not_of("0123456789") == std::string::npos;
  Device device;
  if (kind == "cuda" || kind == "gpu") device.kind = DeviceKind::kCuda;
  if (kind == "tpu") device.kind = DeviceKind::kTpu;
  if (!is_number || (device.kind == DeviceKind::kCpu && kind != "cpu"))
    throw Error(ErrorCode::kInvalidArgument, "device '" + name + "'; expected cpu or cuda:N");
  device.index = std::stoi(number);
  return device;
}

/// A device of this host that this process may use.
struct DeviceDescription {
  Device device;              ///< its kind and its number
  std::string model;          ///< of a GPU: "NVIDIA H200"
  std::string bus_id;         ///< of a GPU: "0000:1B:00.0", the same in all processes of the host
  uint64_t memory_bytes = 0;  ///< of a GPU: used and free memory together
};

/// The CPU, then the available GPUs in the order of their numbers. CUDA_VISIBLE_DEVICES limits the
/// GPUs. The call allocates nothing on a GPU. Any thread.
inline std::vector<DeviceDescription> Devices() {
  std::vector<DeviceDescription> devices(1);
  for (int index = 0, count = CudaDeviceCount(); index < count; ++index) {
    const char *name = "", *bus_id = "";
    uint64_t bytes = 0;
    detail::Check(dtrun_describe_cuda_device(index, &name, &bus_id, &bytes));
    devices.push_back({{DeviceKind::kCuda, index}, name, bus_id, bytes});
  }
  return devices;
}

/// Throws kUnavailable, with the reason and an alternative, unless this process can use the device.
inline void CheckDevice(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return;
  std::string reason = "there are no TPUs here";
  if (device.kind == DeviceKind::kCuda) {
    const int count = CudaDeviceCount(&reason);
    if (device.index < count) return;
    if (count > 0)
      reason = "this host has " + std::to_string(count) + (count == 1 ? " GPU" : " GPUs");
  }
  throw Error(ErrorCode::kUnavailable, "device " + device.name() + ": " + reason + "; use cpu");
}

/// Fills a buffer with zeros. On a GPU, the fill is enqueued into the buffer's stream. Throws
/// kUnavailable if there is no such GPU, kSystem if the driver fails.
inline void Clear(const Buffer& buffer) {
  if (buffer.count == 0) return;
  if (buffer.device >= 0)
    detail::Check(dtrun_clear(detail::ToC(buffer)));
  else
    std::memset(buffer.data, 0, buffer.bytes());
}

}  // namespace dtrun

#endif  // DTRUN_DETAIL_DEVICE_H_

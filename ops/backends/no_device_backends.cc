#include "dtrun/error.h"
#include "ops/backends/backends.h"

namespace dtrun::ops {

DeviceGroupFactory DeviceBackends(const DeviceSettings&, const base::LogSink&) {
  return [](Communicator&, int) -> std::unique_ptr<DeviceGroup> {
    throw Error(
        ErrorCode::kUnavailable,
        "no GPU: dtrun was built without CUDA (scripts/install builds with it)");
  };
}

}  // namespace dtrun::ops

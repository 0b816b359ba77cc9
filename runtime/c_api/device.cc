#include "dtrun/c_device.h"

#include <cstring>

#include "dtrun/types.h"
#include "runtime/c_api/handles.h"
#include "runtime/device/device_gradients.h"

dtrun_error* dtrun_clear(dtrun_buffer buffer) {
  return dtrun::runtime::c_api::Guard([&] {
    const dtrun::Buffer cleared = dtrun::detail::FromC(buffer);
    if (cleared.count == 0) return;
    dtrun::runtime::c_api::CheckNotNull(buffer.data, "data of the buffer");
    if (cleared.device >= 0)
      dtrun::runtime::ClearOnDevice(cleared);
    else
      std::memset(cleared.data, 0, cleared.bytes());
  });
}

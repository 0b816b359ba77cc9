// The function that libFuzzer calls. It runs the only target of this program.

#include <cstddef>
#include <cstdint>

#include "tests/fuzz/refused.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const dtrun::fuzz::Target target = dtrun::fuzz::Targets().begin()->second;
  return target(data, size);
}

// A rank's flight record, as another process finds it.

#include "base/flight_record.h"

#include <cstring>
#include <vector>

#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint64_t> aligned(size / sizeof(uint64_t) + 17);
  auto* begin = reinterpret_cast<char*>(aligned.data());
  begin += (128 - reinterpret_cast<uintptr_t>(begin) % 128) % 128;
  std::memcpy(begin, data, std::min(size, aligned.size() * sizeof(uint64_t) - 128));
  const auto record = base::ReadFlightRecord(begin, size / 128 * 128);
  if (record) base::PastActivity(*record);
  return 0;
}

// Flight records from other hosts, one after the other in the input, and all reports about them.

#include "base/flight_record.h"

#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "launcher/report/flight_report.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

// The size of a header and four entries.
constexpr size_t kPiece = base::FlightBytes(4);

// The record ends at the end of its memory, so that a read past the record is found.
std::optional<base::FlightRecord> Read(const uint8_t* data, size_t size) {
  if (size % sizeof(base::FlightEntry) != 0) return std::nullopt;
  std::vector<base::FlightEntry> aligned(size / sizeof(base::FlightEntry));
  std::memcpy(static_cast<void*>(aligned.data()), data, size);
  return base::ReadFlightRecord(aligned.data(), size);
}

}  // namespace

FUZZ_TARGET(flight_record) {
  std::vector<base::FlightRecord> records;
  for (size_t begin = 0; begin < size; begin += kPiece) {
    const size_t bytes = std::min(kPiece, size - begin);
    if (auto record = Read(data + begin, bytes)) records.push_back(std::move(*record));
  }
  for (const base::FlightRecord& record : records) {
    base::PastActivity(record);
    base::PresentActivity(record, base::TimePoint(std::chrono::hours(24)));
  }
  launcher::FlightSummary(records);
  launcher::FlightJson(records, static_cast<int>(records.size()));
  for (const launcher::FlightLag& lag : launcher::FindLags(records)) {
    launcher::LagText(lag);
    launcher::JsonOf(lag);
  }
  return 0;
}

#include "runtime/c_api/step_statistics.h"

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime::c_api {

// A program that was compiled with a later version has a longer struct: the rest stays as it is.
void TellStatistics(
    const base::StepTotals& totals, const char* name, dtrun_step_statistics* statistics) {
  if (statistics == nullptr) return;
  constexpr double kSecond = 1e9;  // nanoseconds
  const uint64_t bytes = statistics->struct_bytes;
  if (bytes < sizeof *statistics) {
    throw Error(
        ErrorCode::kInvalidArgument,
        base::Text(
            "struct_bytes of ", name, " is ", bytes, "; expected ", sizeof *statistics,
            ": begin with dtrun_new_step_statistics()"));
  }
  statistics->steps = totals.steps;
  statistics->total_s = static_cast<double>(totals.total_ns) / kSecond;
  statistics->exposed_s = static_cast<double>(totals.exposed_ns) / kSecond;
  statistics->late_s = static_cast<double>(totals.late_ns) / kSecond;
  statistics->bytes = totals.bytes;
  statistics->buckets = totals.buckets;
}

}  // namespace dtrun::runtime::c_api

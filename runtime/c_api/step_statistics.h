#ifndef DTRUN_RUNTIME_C_API_STEP_STATISTICS_H_
#define DTRUN_RUNTIME_C_API_STEP_STATISTICS_H_

#include "base/flight_record.h"
#include "dtrun/c.h"

namespace dtrun::runtime::c_api {

/// Fills in what the caller has begun with dtrun_new_step_statistics; nothing where that is null.
/// `name` is the parameter's, for errors.
void TellStatistics(
    const base::StepTotals& totals, const char* name, dtrun_step_statistics* statistics);

}  // namespace dtrun::runtime::c_api

#endif

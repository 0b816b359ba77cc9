#ifndef DTRUN_TESTS_MODELS_REPORT_EXAMPLE_REPORTS_H_
#define DTRUN_TESTS_MODELS_REPORT_EXAMPLE_REPORTS_H_

#include "models/report/page.h"

namespace dtrun::testing {

/// A run of `epochs` epochs on `ranks` ranks with all measurements and with a different number
/// everywhere. The scaling table has 1, 2, 4, ... ranks.
models::RunReport ExampleReport(int epochs, int ranks);

/// ExampleReport(8, 2) with a training loss of NaN from epoch 5 on and an infinite validation loss
/// in epoch 6.
models::RunReport DivergedReport();

}  // namespace dtrun::testing

#endif

#ifndef DTRUN_TESTS_MODELS_REPORT_EXAMPLE_REPORTS_H_
#define DTRUN_TESTS_MODELS_REPORT_EXAMPLE_REPORTS_H_

#include "models/report/page.h"

namespace dtrun::testing {

/// A run of so many epochs on so many ranks, in which everything was measured and all numbers
/// differ. The scaling table has 1, 2, 4, ... ranks.
models::RunReport ExampleReport(int epochs, int ranks);

/// As ExampleReport(8, 2), but the training loss is NaN from epoch 5 on and the validation loss
/// infinite in epoch 6.
models::RunReport DivergedReport();

}  // namespace dtrun::testing

#endif

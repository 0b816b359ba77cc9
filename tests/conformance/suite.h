#ifndef DTRUN_TESTS_CONFORMANCE_SUITE_H_
#define DTRUN_TESTS_CONFORMANCE_SUITE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/ranks.h"

namespace dtrun::testing {

/// The errors that these ranks found. Each text names the operation, the place and the seed.
struct Findings {
  uint64_t checks = 0;
  uint64_t wrong = 0;
  std::vector<std::string> texts;  ///< the first few

  void Count(bool right, const std::string& text);
};

/// Each function is collective over `ranks` and checks one promise of <dtrun/communicator.h>. An
/// exception from an operation ends the function.

/// Every kind with every dtype, reduce op, root and odd size: in place or not, with counts by rank
/// or not, with private, mapped and mixed memory, scaled or not. Compares results, inputs and the
/// memory around the buffers bit by bit.
void CheckEveryKind(Ranks& ranks, Findings& findings);
/// The same with a third of the operations, for communicators that are slow or made of other ones.
/// For each kind and op, only one dtype runs with all variants: in place, counts by rank, memory
/// and scale. The other dtypes run with one variant after another.
void CheckEveryKindInTurn(Ranks& ranks, Findings& findings);
/// CheckEveryKind under `scripts/test --full`, otherwise CheckEveryKindInTurn.
void CheckEveryKindIfFull(Ranks& ranks, Findings& findings);
/// Whether `scripts/test --full` runs this test (DTRUN_TEST_FULL is set).
bool RunsInFull();

/// Random operations, several in flight at once, finished in any order. With `any_values`, also
/// compares sums that round, with the balanced tree over all ranks.
void CheckRandomOperations(
    Ranks& ranks, Findings& findings, uint64_t seed, int operations, bool any_values);

/// Sums that round have the same bits on all ranks, in repeated runs and in every placement.
void CheckSameBits(Ranks& ranks, Findings& findings);

/// Messages between all pairs in both directions, while collectives run.
void CheckMessages(Ranks& ranks, Findings& findings);

/// Split, Subset and Duplicate, and overlapping communicators with operations in flight at once.
void CheckSubCommunicators(Ranks& ranks, Findings& findings);

}  // namespace dtrun::testing

#endif

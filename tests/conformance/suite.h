#ifndef DTRUN_TESTS_CONFORMANCE_SUITE_H_
#define DTRUN_TESTS_CONFORMANCE_SUITE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/ranks.h"

namespace dtrun::testing {

/// What these ranks saw that was wrong; each text says which operation, where, and with which seed.
struct Findings {
  uint64_t checks = 0;
  uint64_t wrong = 0;
  std::vector<std::string> texts;  ///< the first few

  void Count(bool right, const std::string& text);
};

/// Each function is collective over `ranks` and checks one promise of <dtrun/communicator.h>. An
/// operation that throws ends it.

/// Every kind with every dtype, reduce op, root and odd size; in place and not; counts by rank or
/// not; private, mapped and mixed memory; scaled or not. Results are compared bit by bit, inputs
/// and what lies around the outputs too.
void CheckEveryKind(Ranks& ranks, Findings& findings);
/// The same for what is slow, with a third of the operations: in place or not, by rank or not, each
/// memory and scale are all tried with one dtype, another one for each kind and op, and one after
/// the other with the rest.
void CheckEveryKindInTurn(Ranks& ranks, Findings& findings);

/// Random operations, several under way at once, waited for in any order.
/// `any_values`: sums that round are compared too, with the balanced tree over all ranks.
void CheckRandomOperations(
    Ranks& ranks, Findings& findings, uint64_t seed, int operations, bool any_values);

/// Sums that round have the same bits on all ranks, in repeated runs, wherever they lie.
void CheckSameBits(Ranks& ranks, Findings& findings);

/// Messages between all pairs in both directions, while collectives run.
void CheckMessages(Ranks& ranks, Findings& findings);

/// Split, Subset and Duplicate; communicators that overlap, under way at once.
void CheckSubCommunicators(Ranks& ranks, Findings& findings);

}  // namespace dtrun::testing

#endif

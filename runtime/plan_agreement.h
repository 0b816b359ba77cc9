#ifndef DTRUN_RUNTIME_PLAN_AGREEMENT_H_
#define DTRUN_RUNTIME_PLAN_AGREEMENT_H_

#include <string>
#include <vector>

#include "ops/communicator.h"

namespace dtrun::runtime {

/// Collective. Throws Error kMismatch on all ranks unless `listing` (the settings, then a line for
/// each gradient) is the same on all of them; it names the first line that differs, and the ranks
/// by what they have. Costs an all-gather of 16 bytes where it is the same. Returns whether
/// `holds` is true on all ranks.
bool Agree(ops::Communicator& communicator, const std::vector<std::string>& listing, bool holds);

}  // namespace dtrun::runtime

#endif

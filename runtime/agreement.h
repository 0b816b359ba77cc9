#ifndef DTRUN_RUNTIME_AGREEMENT_H_
#define DTRUN_RUNTIME_AGREEMENT_H_

#include <string>

#include "ops/communicator.h"

namespace dtrun::runtime {

/// What all ranks have to have alike, as lines of text: first the options, then one line for each
/// item.
struct Listing {
  std::string owner;  ///< "the shards"
  std::string item;   ///< "parameter"
  std::string lines;
};

/// Compares a digest of the listing. Throws Error kMismatch on all ranks when it is not the same
/// everywhere, with the first line that differs and the ranks of each side. Collective.
void AgreeOn(ops::Communicator& communicator, const Listing& listing);

}  // namespace dtrun::runtime

#endif

#ifndef DTRUN_RUNTIME_RELEASED_PAGES_H_
#define DTRUN_RUNTIME_RELEASED_PAGES_H_

#include <vector>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// Gives the whole pages inside these pieces of host memory back to the system, as far as it takes
/// them. What stood there is lost; the memory itself may be written and read again. Pieces that lie
/// side by side, as the parameters of one model do, share pages.
void ReleasePages(const std::vector<Buffer>& pieces);

}  // namespace dtrun::runtime

#endif

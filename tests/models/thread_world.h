#ifndef DTRUN_TESTS_MODELS_THREAD_WORLD_H_
#define DTRUN_TESTS_MODELS_THREAD_WORLD_H_

#include <dtrun/communicator.h>

#include <functional>
#include <string>
#include <vector>

namespace dtrun::testing {

/// Runs `rank_main` on `size` ranks that are threads of this process; what each threw, "" if
/// nothing, in rank order.
std::vector<std::string> OnRanks(int size, const std::function<void(Communicator&)>& rank_main);

}  // namespace dtrun::testing

#endif

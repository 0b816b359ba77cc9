#ifndef DTRUN_TESTS_MODELS_THREAD_WORLD_H_
#define DTRUN_TESTS_MODELS_THREAD_WORLD_H_

#include <dtrun/communicator.h>

#include <functional>
#include <string>
#include <vector>

namespace dtrun::testing {

/// Runs `rank_main` on `size` threads of this process as ranks. Returns the error of each rank in
/// rank order, "" for none.
std::vector<std::string> OnRanks(int size, const std::function<void(Communicator&)>& rank_main);

}  // namespace dtrun::testing

#endif

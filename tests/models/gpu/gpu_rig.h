#ifndef DTRUN_TESTS_MODELS_GPU_GPU_RIG_H_
#define DTRUN_TESTS_MODELS_GPU_GPU_RIG_H_

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/models/thread_world.h"

namespace dtrun::testing {

// Helpers to compare networks on a GPU with the same networks on the CPU.

/// ||a - b|| / ||b||, or ||a|| if b is zero.
inline double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double distance = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    distance += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(norm == 0 ? distance : distance / norm);
}

// Runs `main` on a single thread rank and checks that it throws no error.
inline void Alone(const std::function<void(Communicator&)>& main) {
  CHECK(OnRanks(1, main) == std::vector<std::string>{""});
}

}  // namespace dtrun::testing

#endif  // DTRUN_TESTS_MODELS_GPU_GPU_RIG_H_

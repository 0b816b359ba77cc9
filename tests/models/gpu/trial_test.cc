// The selection of a candidate, and the cache of choices.

#include <dtrun/error.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "models/gpu/convolution.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

constexpr double kUnusable = std::numeric_limits<double>::infinity();

// The selected candidate for these times of all candidates, or -1 for none.
int Chosen(const std::vector<double>& times, Selection selection = Selection::kFastest) {
  const auto milliseconds = [&](size_t i) {
    if (std::isinf(times[i])) throw Error(ErrorCode::kUnavailable, "unusable " + std::to_string(i));
    return times[i];
  };
  std::string problem;
  const auto selected = SelectCandidate(times.size(), selection, milliseconds, problem);
  if (!selected) {
    const std::string last = "unusable " + std::to_string(times.size() - 1);
    CHECK(problem == (times.empty() ? "" : last));
    return -1;
  }
  CHECK(selected->milliseconds == times[selected->candidate]);
  return static_cast<int>(selected->candidate);
}

TEST_CASE("the fastest candidate is chosen and never an unusable one") {
  CHECK(Chosen({3, 1, 2}) == 1);
  CHECK(Chosen({kUnusable, 3, kUnusable, 2}) == 3);
  CHECK(Chosen({kUnusable, kUnusable}) == -1);
  CHECK(Chosen({}) == -1);
}

TEST_CASE("a difference that may be chance does not replace an earlier candidate") {
  CHECK(Chosen({1.00, 0.99}) == 0);
  CHECK(Chosen({1.00, 0.97}) == 1);
  CHECK(Chosen({1.00, 0.99, 0.975}) == 2);
}

TEST_CASE("the limit on trials counts only usable candidates") {
  const std::vector<double> slow(11, 3);
  std::vector<double> times = {kUnusable};
  times.insert(times.end(), slow.begin(), slow.end());
  times.push_back(2);
  times.push_back(1);
  CHECK(Chosen(times) == 12);
}

TEST_CASE("Selection::kFirst takes the first usable candidate") {
  CHECK(Chosen({kUnusable, 2, 1}, Selection::kFirst) == 1);
  CHECK(Chosen({kUnusable, 2, 1}, Selection::kFastest) == 2);
}

TEST_CASE("a choice for a key holds for all threads") {
  ChoiceCache<int> cache;
  std::atomic<int> chosen{0};
  const auto choose = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ++chosen;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { cache.Get("forward", choose); });
  for (std::thread& thread : threads) thread.join();
  CHECK(cache.Get("forward", choose) == 1);
  CHECK(cache.Get("input", choose) == 2);
  CHECK(chosen == 2);
}

TEST_CASE("a failed choice is made again") {
  ChoiceCache<std::string> cache;
  CHECK_THROWS_WITH(
      cache.Get("forward", []() -> std::string { throw std::runtime_error("no way"); }), "no way");
  CHECK(cache.Get("forward", [] { return std::string("found"); }) == "found");
}

}  // namespace
}  // namespace dtrun::testing

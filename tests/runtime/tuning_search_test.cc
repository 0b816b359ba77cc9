// The tuning search on synthetic step times.

#include <catch2/catch.hpp>
#include <functional>
#include <set>

#include "runtime/reducer/autotuner.h"

namespace {

using dtrun::runtime::TuningSearch;
using Values = std::vector<uint64_t>;
using Seconds = std::function<double(const Values&)>;

Values Search(TuningSearch search, const Seconds& seconds) {
  while (!search.done()) search.Record(seconds(search.trial()));
  return search.trial();
}

TEST_CASE("the search finds the fastest value of each dimension in turn") {
  // The best chunk depends on the bucket, which is found first.
  const Seconds seconds = [](const Values& v) {
    const double bucket = v[0] == 4 ? 1 : 2, chunk = v[1] == 2 * v[0] ? 0.1 : 0.5;
    return bucket + chunk;
  };
  CHECK(
      Search(TuningSearch({{"bucket", {1, 2, 4}, 0}, {"chunk", {2, 4, 8}, 0}}), seconds) ==
      Values{4, 8});
}

TEST_CASE("only a clearly faster value replaces the default") {
  const auto tiny_gain = [](const Values& v) { return v[0] == 7 ? 0.99 : 1.0; };
  const auto gain = [](const Values& v) { return v[0] == 7 ? 0.97 : 1.0; };
  const TuningSearch search({{"bucket", {3, 5, 7}, 1}});
  CHECK(Search(search, tiny_gain) == Values{5});
  CHECK(Search(search, gain) == Values{7});
}

TEST_CASE("trials take the values of each dimension in turn and their number is known before") {
  TuningSearch search({{"a", {1, 2, 3}, 2}, {"alone", {9}, 0}, {"b", {0, 1}, 0}}, {.rounds = 4});
  CHECK(search.trial_count() == 4 * 3 + 4 * 2);
  std::vector<uint64_t> tried;
  uint64_t trials = 0;
  for (; !search.done(); ++trials) {
    CHECK(search.trial()[1] == 9);
    if (trials < 12) tried.push_back(search.trial()[0]);
    if (trials >= 12) CHECK(search.trial()[0] == 3);
    search.Record(1);
  }
  CHECK(trials == search.trial_count());
  CHECK(tried == std::vector<uint64_t>{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3});
  CHECK(search.trial() == Values{3, 9, 0});
  CHECK(search.seconds() == 1);
}

TEST_CASE("a step with a disturbance does not decide the search") {
  int step = 0;
  const auto seconds = [&](const Values& v) {
    const bool disturbed = ++step % 7 == 0;
    return (v[0] == 2 ? 0.5 : 1.0) + (disturbed ? 30 : 0);
  };
  CHECK(Search(TuningSearch({{"bucket", {1, 2, 3, 4}, 0}}), seconds) == Values{2});
}

TEST_CASE("a search without choices is done at once") {
  CHECK(TuningSearch({}).done());
  const TuningSearch single({{"bucket", {5}, 0}});
  CHECK(single.done());
  CHECK(single.trial() == Values{5});
  CHECK(single.trial_count() == 0);
}

}  // namespace

// The check that TF_CONFIG describes the job of a strategy.

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dtrun/error.h"
#include "runtime/job/join_by_hand.h"

namespace dtrun::runtime {
namespace {

using Catch::Matchers::Contains;

// The error for rank 1 of `ranks` ranks, with two ranks per host.
std::string Refusal(const std::optional<std::string>& config, int ranks) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / 2);
  try {
    CheckTfJob(
        [&](const std::string& name) { return name == "TF_CONFIG" ? config : std::nullopt; }, 1,
        hosts);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST_CASE("a job without TF_CONFIG or with a matching TF_CONFIG is accepted") {
  CHECK(Refusal(std::nullopt, 4).empty());
  CHECK(Refusal("", 4).empty());
  CHECK(Refusal("{}", 4).empty());
  CHECK(Refusal(
            R"({"cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]}, )"
            R"("task": {"type": "worker", "index": 0}})",
            3)
            .empty());
}

TEST_CASE("a TF_CONFIG of another job or an invalid TF_CONFIG is refused with its content") {
  CHECK(
      Refusal(R"({"cluster": {"worker": ["a:1", "b:1"]}})", 3) ==
      "environment variable TF_CONFIG: the cluster has 2 tasks; expected 3, as many as the job has "
      "ranks");
  CHECK(
      Refusal(
          R"({"cluster": {"worker": ["a:1", "a:2"]}, "task": {"type": "worker", "index": 0}})",
          2) ==
      "environment variable TF_CONFIG: found task 0; expected task 1, as this process is rank 1");
  CHECK(
      Refusal(R"({"cluster": {"worker": ["a:1", "b:1", "a:2"]}})", 3) ==
      "environment variable TF_CONFIG: tasks 0 and 2 are both on a; the job has these ranks on two "
      "hosts");
  CHECK(Refusal(R"({"cluster": {"worker": ["a:1", "localhost:1"]}})", 2).empty());
  CHECK_THAT(Refusal("none", 1), Contains("TF_CONFIG: found 'none'"));
  CHECK_THAT(
      Refusal(
          R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 5}})", 2),
      Contains(
          "task.index is '5'; expected a number below 2, the number of tasks in cluster.worker"));
}

}  // namespace
}  // namespace dtrun::runtime

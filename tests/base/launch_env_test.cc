#include "base/launch_env.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "dtrun/error.h"

namespace {

using namespace dtrun::base;

GetEnv From(const Environment& environment) {
  const std::map<std::string, std::string> variables(environment.begin(), environment.end());
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string RefusalOfLaunch(const Environment& environment) {
  try {
    ReadLaunchEnv(From(environment));
  } catch (const dtrun::Error& error) {
    CHECK(error.code() == dtrun::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("the runtime reads the variables that the launcher writes") {
  const LaunchEnv launch{
      .job = "c0ffee",
      .version = "0.1.0",
      .hosts = {{"h1", 2}, {"[fe80::1]", 3}},
      .terminal_columns = 120,
      .threads = 4,
      .bind = "core",
      .verbose = true,
      .timeline = true,
      .servers = 2,
      .rank = 4,
      .secret_file = "/tmp/job/secret",
      .shutdown_note = "/tmp/job/shutdown.1",
      .flight_folder = "/dev/shm/job/flight",
  };
  CHECK(ReadLaunchEnv(From(WriteLaunchEnv(launch))) == launch);
}

TEST_CASE("LaunchVariables lists all variables of a launch so that they can be removed") {
  LaunchEnv launch{
      .job = "1",
      .threads = 1,
      .bind = "core",
      .verbose = true,
      .timeline = true,
      .servers = 1,
      .rank = 0};
  launch.shutdown_note = launch.flight_folder = launch.secret_file = "/tmp";
  for (const auto& [name, value] : WriteLaunchEnv(launch)) {
    const auto& names = LaunchVariables();
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  }
}

TEST_CASE("outside a dtrun job there is no launch environment") {
  CHECK(ReadLaunchEnv(From({})) == std::nullopt);
}

TEST_CASE("an invalid launch variable is refused with its value and the expected value") {
  CHECK(
      RefusalOfLaunch({{"DTRUN_JOB", "1"}, {"DTRUN_HOSTS", "h1:2,h2"}}) ==
      "environment variable DTRUN_HOSTS is 'h1:2,h2'; expected host:slots,host:slots,... (dtrun "
      "sets it)");
  CHECK(RefusalOfLaunch({{"DTRUN_JOB", "1"}}).find("DTRUN_HOSTS is ''") != std::string::npos);
  CHECK(
      RefusalOfLaunch({{"DTRUN_JOB", "1"}, {"DTRUN_HOSTS", "h:1"}, {"DTRUN_THREADS", "-1"}})
          .find("DTRUN_THREADS is '-1'; expected a number from 0") != std::string::npos);
  CHECK(
      RefusalOfLaunch({{"DTRUN_JOB", "1"}, {"DTRUN_HOSTS", "h:2"}, {"DTRUN_RANK", "2"}}) ==
      "environment variable DTRUN_RANK is '2'; expected a rank below 2 (dtrun sets it)");
  CHECK(
      RefusalOfLaunch(
          {{"DTRUN_JOB", "1"}, {"DTRUN_HOSTS", "h:2"}, {"DTRUN_PARAMETER_SERVERS", "2"}}) ==
      "environment variable DTRUN_PARAMETER_SERVERS is '2'; expected fewer parameter servers than "
      "the 2 ranks (dtrun sets it)");
}

TEST_CASE("too many ranks are refused in a short message") {
  std::string hosts = "a:1000000";
  for (int i = 0; i < 3000; ++i) hosts += ",a:1000000";
  CHECK(
      RefusalOfLaunch({{"DTRUN_JOB", "1"}, {"DTRUN_HOSTS", hosts}}) ==
      "environment variable DTRUN_HOSTS is '" + hosts.substr(0, 60) +
          "...'; expected at most 1000000 ranks (dtrun sets it)");
}

TEST_CASE("ranks are numbered through the hosts in order") {
  const std::vector<HostSlots> hosts = {{"a", 2}, {"b", 1}, {"c", 3}};
  CHECK(RankCount(hosts) == 6);
  std::vector<int> found;
  for (int rank = 0; rank < 6; ++rank) found.push_back(HostOfRank(hosts, rank));
  CHECK(found == std::vector<int>{0, 0, 1, 2, 2, 2});
}

}  // namespace

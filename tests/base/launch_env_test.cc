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
      .corruptions = {{.rank = 1, .step = 4, .bucket = 2}, {.rank = 0, .step = 7}},
      .servers = 2,
      .rank = 4,
      .secret_file = "/tmp/job/secret",
      .shutdown_note = "/tmp/job/shutdown.1",
      .flight_folder = "/dev/shm/job/flight",
  };
  CHECK(ReadLaunchEnv(From(WriteLaunchEnv(launch))) == launch);
}

TEST_CASE("a job that has changed its size tells each process its rank, or that it has none") {
  const LaunchEnv launch{
      .job = "1",
      .hosts = {{"h2", 1}, {"h3", 2}},
      .rank = 5,
      .members = {1, 5, 7},
      .agent = 3,
      .launch_size = 4};
  const auto read = ReadLaunchEnv(From(WriteLaunchEnv(launch)));
  REQUIRE(read);
  CHECK(*read == launch);
  CHECK(RankOf(*read, read->rank) == 1);
  CHECK(RankOf(*read, 2) == -1);
  LaunchEnv paused = launch;
  paused.paused = true;
  CHECK(RankOf(*ReadLaunchEnv(From(WriteLaunchEnv(paused))), 5) == -1);
  CHECK(RankOf({.hosts = {{"h1", 2}}}, 1) == 1);
  CHECK(
      RefusalOfLaunch({{"DTRUN_JOB", "1"}, {"DTRUN_HOSTS", "h:2"}, {"DTRUN_MEMBERS", "1,2,3"}}) ==
      "environment variable DTRUN_MEMBERS is '1,2,3'; expected one number for each of the 2 ranks "
      "(dtrun sets it)");
}

TEST_CASE("LaunchVariables lists all variables of a launch so that they can be removed") {
  LaunchEnv launch{
      .job = "1",
      .threads = 1,
      .bind = "core",
      .verbose = true,
      .timeline = true,
      .servers = 1,
      .rank = 0,
      .members = {0, 1},
      .paused = true,
      .agent = 0,
      .restarts = true,
      .starts_again = true,
      .epoch = 3,
      .agents = {0, 2},
      .kept_state = "/dev/shm/state",
      .launch_size = 2,
      .epoch_file = "/tmp/epoch"};
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

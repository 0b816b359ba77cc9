// Ranks of two hosts that lose other ranks in every way, and go on in the same processes. Each case
// prints when the ranks were told, and when they had reduced again.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "tests/multihost/rig.h"
#include "tests/support/subprocess.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains, Catch::Matchers::EndsWith;

constexpr double kPeerTimeout = 4, kTimeout = 6;

// Four ranks on h1 and h2, each with its own file. `fault` is a shell command of h1; $victim is the
// process of rank 3. Prints the time of the fault, then the files of all ranks.
CommandResult WhileRanksReduce(
    const std::string& when, const std::string& fault, const std::string& after) {
  const std::string script =
      "d=$(mktemp -d /tmp/survivors.XXXXXX); trap 'rm -rf $d' EXIT; "
      "export DTRUN_JOB_SECRET=0123456789abcdef0123456789abcdef; "
      "on() { ssh $1 \"cd $PWD; RANK=$2 WORLD_SIZE=4 MASTER_ADDR=h1 MASTER_PORT=29500 "
      "DTRUN_JOB_SECRET=$DTRUN_JOB_SECRET DTRUN_PEER_TIMEOUT_S=4 DTRUN_TIMEOUT_S=6 "
      "DTRUN_STALL_WARNING_S=6 setsid nohup tests/ranks/survivor " +
      when +
      " </dev/null >$d/$2 2>$d/$2.err &\"; }; "
      "on h1 0; on h1 1; on h2 2; on h2 3; "
      "for i in $(seq 300); do [ $(cat $d/? | grep -c works) = 4 ] && break; sleep 0.1; done; "
      "victim=$(sed -n 's/.*pid //p' $d/3); sleep 0.7; "
      "cut -d' ' -f1 /proc/uptime; " +
      fault +
      "; for i in $(seq 300); do [ $(cat $d/[01] | grep -cE 'done|ends') = 2 ] && break; "
      "sleep 0.1; done; " +
      after + "; sleep 1; for r in 0 1 2 3; do sed \"s/^/rank $r: /\" $d/$r $d/$r.err; done";
  return Run(ScriptOnHosts(script));
}

struct Story {
  double told = 0, goes_on = 0;  // s since the boot
  std::string error, state;
  std::vector<std::string> about;  // ranks and hosts that the error has for programs
  bool done = false;
};

Story StoryOf(const std::string& output, int rank) {
  Story story;
  std::istringstream lines(output);
  const std::string own = "rank " + std::to_string(rank) + ": ";
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(own)) continue;
    double time = 0;
    int read = 0;
    if (std::sscanf(line.c_str() + own.size(), "%lf %n", &time, &read) != 1) continue;
    const std::string text = line.substr(own.size() + static_cast<size_t>(read));
    if (text.starts_with("told ")) story.told = time, story.error = text;
    if (text.starts_with("about ")) story.about.push_back(text);
    if (text.starts_with("goes on")) story.goes_on = time, story.state = text;
    story.done |= text == "done";
  }
  return story;
}

struct Fault {
  const char* name;
  const char* command;
  const char* after;           // when the ranks that are left are done
  std::vector<int> left;       // ranks
  double least = 0, most = 0;  // s until the ranks are told
  const char* cause;
};

// Packets to `to` get lost on their way from `from`.
#define DROP(from, to)                                                      \
  "nsenter --net=/run/rig/" from "/net ip neigh replace $(getent hosts " to \
  " | cut -d' ' -f1) lladdr 02:00:00:00:00:01 dev eth0 nud permanent"

TEST_CASE("ranks that are left are told of every loss and go on in the same processes") {
  if (Skipped()) return;
  const std::string when = GENERATE("during", "between");
  const Fault fault = GENERATE(
      Fault{"kill -9 of a rank", "ssh h2 kill -KILL $victim", ":", {0, 1, 2}, 0, 3, "rank 3 "},
      Fault{
          "SIGSTOP of a rank",
          "ssh h2 kill -STOP $victim",
          "ssh h2 kill -CONT $victim; sleep 2",
          {0, 1, 2},
          kTimeout - 1.5,
          kTimeout + 5,
          "rank 3 "},
      Fault{
          "the link from h2 cut",
          DROP("h2", "h1"),
          ":",
          {0, 1},
          kPeerTimeout - 2,
          kPeerTimeout + 4,
          "its host does not answer"},
      Fault{
          "the link to h2 cut",
          DROP("h1", "h2"),
          ":",
          {0, 1},
          kPeerTimeout - 2,
          kPeerTimeout + 4,
          "its host does not answer"},
      Fault{
          "the link cut in both directions",
          "nsenter --net=/run/rig/h2/net ip link set eth0 down",
          ":",
          {0, 1},
          kPeerTimeout - 2,
          kPeerTimeout + 4,
          "its host does not answer"},
      Fault{
          "the host gone",
          "ssh h2 \"setsid sh -c 'sleep 0.3; kill -KILL -1' >/dev/null 2>&1 &\"; "
          "nsenter --net=/run/rig/h2/net ip link set eth0 down",
          ":",
          {0, 1},
          kPeerTimeout - 2,
          kPeerTimeout + 4,
          "its host does not answer"});
  const CommandResult result = WhileRanksReduce(when, fault.command, fault.after);
  CAPTURE(when, fault.name, result.out, result.err);
  double begin = 0;
  REQUIRE(std::sscanf(result.out.c_str(), "%lf", &begin) == 1);
  int sum = 0;
  for (const int rank : fault.left) sum += rank + 1;
  double told = 0, again = 0;
  bool named = false;
  for (size_t i = 0; i < fault.left.size(); ++i) {
    const Story story = StoryOf(result.out, fault.left[i]);
    CAPTURE(fault.left[i]);
    // In a timeout, a rank names the rank for which it waits, which may wait for another one.
    if (story.error.starts_with("told 3")) CHECK_THAT(story.error, Contains(fault.cause));
    if (story.error.starts_with("told 3")) CHECK(story.about.size() == 1);
    for (const std::string& about : story.about) {
      const int rank = std::stoi(about.substr(std::strlen("about rank ")));
      CHECK_THAT(story.error, Contains("rank") && Contains(std::to_string(rank) + " ("));
      CHECK_THAT(about, EndsWith(rank < 2 ? " on h1" : " on h2"));
    }
    named |= story.error.find(fault.cause) != std::string::npos;
    CHECK(story.told - begin > fault.least);
    CHECK(story.told - begin < fault.most);
    const std::string state = "goes on: rank " + std::to_string(i) + " of " +
                              std::to_string(fault.left.size()) + ", sum " + std::to_string(sum) +
                              ", hierarchical";
    CHECK(story.state == state);
    CHECK(story.done);
    told = std::max(told, story.told - begin);
    again = std::max(again, story.goes_on - story.told);
  }
  CHECK(named);
  std::printf(
      "%s, %s: told after %.2f s, reduced again %.2f s later\n", fault.name, when.c_str(), told,
      again);
}

}  // namespace

// The timeline of real ranks, written by dtrun --timeline or by the program, and tests of the
// validator that checks it.

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;
using nlohmann::json;
using Words = std::vector<std::string>;

// The name of a gradient of tests/ranks/steps.cc, as the validator prints it.
const std::string kOddName = R"("conv \"1\"\\\n\u0001/w\ufffd")";

CommandResult Judge(const std::string& path) {
  return Run(Command{.argv = {"/usr/bin/python3", "tests/support/check_trace.py", path}});
}

std::string Validated(const std::string& path) {
  const CommandResult result = Judge(path);
  INFO(result.err);
  CHECK(result.exit_code == 0);
  return result.out;
}

TEST_CASE("dtrun --timeline records all ranks of a job from start to end") {
  const std::string ranks = GENERATE("2", "4");
  const std::string backend = GENERATE("shm", "mpi");
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace.json";
  const CommandResult result =
      RunJob({"-np", ranks, "--backend", backend, "--timeline", path, "tests/ranks/steps", "10"});
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string found = Validated(path);
  CAPTURE(found);
  for (int rank = 0; rank < std::stoi(ranks); ++rank) {
    const std::string pid = std::to_string(rank);
    for (const char* line :
         {" X \"step\" 10\n", " X \"wait\" 10\n", " X \"all_reduce\" 10\n", " X \"shutdown\" "})
      CHECK_THAT(found, Contains(pid + line));
    CHECK_THAT(found, Contains(pid + " i " + kOddName + " 10\n"));
    CHECK_THAT(found, Contains(pid + " X \"ranks arrive\" "));
  }
  const json document = ReadJson(path);
  const json& other = document["otherData"];
  CHECK(other["command"] == json{"tests/ranks/steps", "10"});
  CHECK(other["exit_code"] == 0);
  CHECK(other["ranks"].size() == std::stoul(ranks));
  for (const json& rank : other["ranks"]) {
    CHECK(rank["dropped_records"] == 0);
    CHECK(rank["clock_offset_us"] == 0);  // one host, one clock
  }
  CHECK(folder.Entries() == Words{"trace.json"});
}

// The rows of collectives that a rank has, by name.
Words RowsOfCollectives(const json& timeline, int rank) {
  Words rows;
  for (const json& event : timeline["traceEvents"]) {
    if (event["name"] != "thread_name" || event["pid"] != rank) continue;
    const std::string row = event["args"]["name"];
    if (row.rfind("collectives", 0) == 0) rows.push_back(row);
  }
  return rows;
}

TEST_CASE("a start that broadcasts or loads many tensors takes two rows of collectives at most") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace.json";
  const std::string way = GENERATE("broadcast", "load");
  const CommandResult result = RunJob(
      {"-np", "2", "--timeline", path, "tests/ranks/steps", "3", way,
       folder.path() + "/checkpoints"});
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string found = Validated(path);
  const json timeline = ReadJson(path);
  for (int rank : {0, 1}) {
    CAPTURE(way, rank, found);
    const int at_least = 20;
    int broadcasts = 0;
    for (const json& event : timeline["traceEvents"])
      broadcasts += event["ph"] == "X" && event["name"] == "broadcast" && event["pid"] == rank;
    CHECK(broadcasts >= at_least);
    CHECK(RowsOfCollectives(timeline, rank).size() <= 2);
  }
}

TEST_CASE("each named tensor has a row with the agreement of the ranks and the move of its data") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  const CommandResult result = RunJob({"-np", "4", "--timeline", path, "tests/ranks/named"});
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string found = Validated(path);
  CAPTURE(found);
  for (const char* rank : {"0", "1", "2", "3"}) {
    CHECK_THAT(found, Contains(std::string(rank) + " X \"t7\" 20\n"));
    CHECK_THAT(found, Contains(std::string(rank) + " X \"value\" 1\n"));
  }
  CHECK_THAT(found, Contains("0 X \"x (ranks 0 and 2)\" 1\n"));
  CHECK_THAT(found, Contains("1 X \"x (ranks 1 and 3)\" 1\n"));
  int agreements = 0, failed = 0;
  std::map<std::pair<int, int>, std::string> rows;
  const json document = ReadJson(path);
  for (const json& event : document["traceEvents"]) {
    const std::pair<int, int> row(event["pid"], event["tid"]);
    if (event["name"] == "thread_name") rows[row] = event["args"]["name"];
    if (event.value("cat", "") != "tensor") continue;
    agreements += event["name"] == "ranks agree" ? 1 : 0;
    if (event["name"] == "ranks agree" || event["name"] == "data moves") continue;
    CHECK(rows[row] == event["name"]);
    CHECK_FALSE(event["args"].contains("unfinished"));
    failed += event["args"].contains("failed") ? 1 : 0;
  }
  CHECK(agreements > 4 * 20 * 50);
  CHECK(failed >= 4);  // the ranks disagree on a shape
}

TEST_CASE("the timeline of a failed job contains finished and unfinished operations") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  CHECK(
      RunJob({"-np", "2", "--timeline", path, "tests/ranks/steps", "5", "kill"}).exit_code ==
      128 + 9);
  const std::string found = Validated(path);
  CAPTURE(found);
  CHECK_THAT(found, Contains("1 X \"step\" 5\n"));
  CHECK_THAT(found, Contains("0 X \"all_reduce\" 6\n"));
  // dtrun ended rank 0 in the operation, or the operation failed because rank 1 was gone.
  int undone = 0;
  const json document = ReadJson(path);
  for (const json& event : document["traceEvents"]) {
    if (event["ph"] != "X" || event["name"] != "all_reduce") continue;
    undone += event["args"].contains("unfinished") || event["args"].contains("failed") ? 1 : 0;
  }
  CHECK(undone == 1);
}

TEST_CASE("a program writes its own timeline under dtrun or mpirun or alone") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  CommandResult result;
  int ranks = 2;
  SECTION("dtrun") { result = RunJob({"-np", "2", "tests/ranks/steps", "7", path}); }
  SECTION("mpirun") {
    result = Run(Command{
        .argv = {
            "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "tests/ranks/steps",
            "7", path}});
  }
  SECTION("alone") {
    ranks = 1;
    result = Run(Command{.argv = {"tests/ranks/steps", "7", path}});
  }
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string found = Validated(path);
  for (int rank = 0; rank < ranks; ++rank)
    CHECK_THAT(found, Contains(std::to_string(rank) + " X \"step\" 7\n"));
  CHECK_THAT(found, Contains("0 i " + kOddName + " 7\n"));
}

TEST_CASE("StartTimeline is refused under dtrun --timeline") {
  const TemporaryFolder folder;
  const CommandResult result = RunJob(
      {"-np", "2", "--timeline", folder.path() + "/a", "tests/ranks/steps", "1",
       folder.path() + "/b"});
  CHECK(result.exit_code != 0);
  CHECK_THAT(
      result.err,
      Contains("StartTimeline: dtrun --timeline writes the timeline of this job already"));
  CHECK(folder.Entries() == Words{"a"});
}

TEST_CASE("dtrun --timeline reports that the timeline of a program without dtrun is empty") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  const CommandResult result = RunJob({"-np", "2", "--timeline", path, "true"});
  CHECK(result.exit_code == 0);
  CHECK(
      result.err == "dtrun: --timeline " + path + ": empty, because no rank called dtrun's Init\n");
  CHECK_THAT(Validated(path), Catch::StartsWith("arrows 0\n"));
}

TEST_CASE("an unwritable timeline file is an error with exit code 73") {
  const TemporaryFolder folder;
  const CommandResult result =
      RunJob({"-np", "1", "--timeline", folder.path() + "/none/trace", "echo", "ran"});
  CHECK(result.exit_code == 73);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains("cannot write " + folder.path() + "/none/trace: No such file"));
  CHECK(RunJob({"-np", "2", "--timeline", "/dev/full", "tests/ranks/steps", "1"}).exit_code == 73);
}

// ---- The validator ------------------------------------------------------------------------------

std::string Slice(int pid, const std::string& name, double ts, double dur) {
  return json{{"ph", "X"}, {"name", name}, {"pid", pid}, {"tid", 1}, {"ts", ts}, {"dur", dur}}
      .dump();
}

std::string Event(const std::string& phase, int pid, double ts, const std::string& more = "") {
  return R"({"ph":")" + phase + R"(","name":"n","pid":)" + std::to_string(pid) +
         R"(,"tid":1,"ts":)" + std::to_string(ts) + more + "}";
}

TEST_CASE("the validator accepts only events that the trace format allows") {
  const TemporaryFolder folder;
  const std::string one = Slice(0, "a", 1, 10), other = Slice(1, "a", 2, 10);
  const std::string flow = R"(,"cat":"c","id":7)";
  const auto judge = [&](const Words& events) {
    std::string text;
    for (const std::string& event : events) text += (text.empty() ? "" : ",") + event;
    return Judge(folder.Write("trace", "{\"traceEvents\":[" + text + "]}"));
  };
  CHECK(judge({}).exit_code == 0);
  CHECK(judge({one, Slice(0, "b", 2, 3), Slice(0, "c", 5, 6), other}).exit_code == 0);
  CHECK(judge({Event("B", 0, 1), Event("i", 0, 1), Event("E", 0, 2)}).exit_code == 0);
  CHECK(judge({one, other, Event("s", 0, 1, flow), Event("f", 1, 2, flow)}).exit_code == 0);

  const std::vector<std::pair<Words, std::string>> broken = {
      {{Event("B", 0, 1)}, "has no E"},
      {{Event("E", 0, 1)}, "an E without a B"},
      {{one, Slice(0, "b", 0.5, 1)}, "the time goes back"},
      {{one, Slice(0, "b", 5, 7)}, "'b' ends after 'a'"},
      {{Slice(0, "a", 1, -1)}, "dur is no duration"},
      {{Event("s", 0, 1, flow), one}, "ends 0 times"},
      {{one, other, Event("s", 0, 1, flow), Event("s", 0, 1, flow), Event("f", 1, 2, flow)},
       "begins 2 times"},
      {{one, other, Event("s", 0, 9, flow), Event("f", 1, 2, flow)}, "goes back in time"},
      {{one, other, Event("s", 0, 1, flow), Event("f", 1, 20, flow)}, "touches no slice"},
      {{one, Event("s", 0, 1, flow), Event("f", 0, 2, flow)}, "stays in one process"},
      {{Event("Q", 0, 1)}, "its phase is 'Q'"},
      {{R"({"ph":"i","name":"n","pid":0,"tid":1,"ts":NaN})"}, "NaN is no JSON"},
      {{R"({"ph":"i","name":"n","pid":0,"tid":1,"ts":1,"ts":2})"}, "a key stands twice"},
      {{R"({"ph":"i","name":"\ud800","pid":0,"tid":1,"ts":1})"}, "half a character"},
      {{"{\"ph\":\"i\",\"name\":\"\xff\",\"pid\":0,\"tid\":1,\"ts\":1}"}, "can't decode"},
      {{"{"}, "trace: "},
  };
  for (const auto& [events, why] : broken) {
    const CommandResult result = judge(events);
    CAPTURE(events, result.err);
    CHECK(result.exit_code == 1);
    CHECK_THAT(result.err, Contains(why));
  }
}

}  // namespace

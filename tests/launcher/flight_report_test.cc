#include "launcher/report/flight_report.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "dtrun/types.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/user_files.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

using base::CollectiveKind;
using base::FlightOperation;
using base::FlightRecord;
using base::FlightState;
using nlohmann::json;
using testing::ParseJson;

FlightOperation TimedOperation(uint64_t sequence, CollectiveKind kind, FlightState state) {
  FlightOperation operation;
  operation.communicator = "world";
  operation.sequence = sequence;
  operation.call.count = 4;
  operation.call.before = operation.call.after = 1;
  operation.call.root = 2;
  operation.call.kind = static_cast<uint8_t>(kind);
  operation.call.dtype = static_cast<uint8_t>(DType::kF32);
  operation.state = state;
  operation.start_ns = 5'000;
  if (state >= FlightState::kDone) operation.end_ns = 9'000;
  return operation;
}

FlightRecord RecordOf(int rank, std::vector<FlightOperation> operations) {
  FlightRecord record;
  record.rank = rank;
  record.pid = 100 + rank;
  record.host = "h";
  record.unix_offset_ns = 1'000'000;
  record.operations = std::move(operations);
  return record;
}

const FlightOperation kBarrier = TimedOperation(11, CollectiveKind::kBarrier, FlightState::kDone);
const FlightOperation kAllReduce =
    TimedOperation(12, CollectiveKind::kAllReduce, FlightState::kStarted);

TEST_CASE("ranks with the same activity are named together") {
  CHECK(
      FlightSummary(
          {RecordOf(0, {kBarrier, kAllReduce}), RecordOf(1, {kBarrier}),
           RecordOf(2, {kBarrier, kAllReduce}), RecordOf(3, {kAllReduce})}) ==
      "ranks 0, 2 and 3 waited in collective #12, all_reduce (f32, 4 elements, sum); rank 1 last "
      "finished collective #11, barrier");
}

TEST_CASE("ranks without any known activity give no line") {
  CHECK(FlightSummary({}) == "");
  CHECK(FlightSummary({RecordOf(0, {}), RecordOf(1, {})}) == "");
  CHECK(
      FlightSummary({RecordOf(0, {}), RecordOf(1, {kBarrier})}) ==
      "rank 0 called nothing; rank 1 last finished collective #11, barrier");
}

TEST_CASE("a thousand ranks with different activities still give one short line") {
  std::vector<FlightRecord> records;
  for (int rank = 0; rank < 1000; ++rank) {
    const auto sequence = static_cast<uint64_t>(rank) + 1;
    records.push_back(
        RecordOf(rank, {TimedOperation(sequence, CollectiveKind::kBarrier, FlightState::kDone)}));
  }
  const std::string summary = FlightSummary(records);
  CHECK(summary.size() < 600);
  CHECK_THAT(summary, Catch::EndsWith("; 992 other ranks were elsewhere"));
}

TEST_CASE("the flight record file holds all ranks with their operations from oldest to newest") {
  FlightRecord first = RecordOf(
      0, {kBarrier, TimedOperation(3, CollectiveKind::kBroadcast, FlightState::kFailed),
          TimedOperation(4, CollectiveKind::kSend, FlightState::kMoving), kAllReduce});
  first.gave_up = "gave up";
  const json list = ParseJson(FlightJson({first}, 2));
  REQUIRE(list.size() == 2);
  CHECK(list[0]["rank"] == 0);
  CHECK(list[0]["pid"] == 100);
  CHECK(list[0]["host"] == "h");
  CHECK(list[0]["gave_up"] == "gave up");
  const json& operations = list[0]["operations"];
  REQUIRE(operations.size() == 4);
  CHECK(
      operations[0] == json{
                           {"communicator", "world"},
                           {"sequence", 11},
                           {"kind", "barrier"},
                           {"state", "done"},
                           {"start_us", 1005},
                           {"end_us", 1009}});
  CHECK(
      operations[1] == json{
                           {"communicator", "world"},
                           {"sequence", 3},
                           {"kind", "broadcast"},
                           {"dtype", "f32"},
                           {"count", 4},
                           {"root", 2},
                           {"state", "failed"},
                           {"start_us", 1005},
                           {"end_us", 1009}});
  CHECK(operations[2]["peer"] == 2);
  CHECK(operations[2]["state"] == "moving");
  CHECK(operations[3]["op"] == "sum");
  CHECK_FALSE(operations[3].contains("end_us"));
  CHECK(list[1] == json{{"rank", 1}, {"missing", "this host has no record of the rank"}});
}

TEST_CASE("a record with invalid bytes still gives valid JSON") {
  FlightOperation odd = kAllReduce;
  odd.communicator = "\xff\xfe\x80";
  odd.call.kind = odd.call.dtype = odd.call.op = 250;
  odd.start_ns = INT64_MAX;
  FlightRecord record = RecordOf(0, {odd});
  record.host = "\xc3";
  const json list = ParseJson(FlightJson({record}, 1));
  CHECK(list[0]["operations"][0]["kind"] == "unknown collective");
  CHECK_FALSE(FlightSummary({record}).empty());
}

TEST_CASE("damaged record files are left out") {
  const testing::TemporaryFolder folder;
  folder.Write("0", "");
  folder.Write("1", std::string(100'000, 'x'));
  folder.Write("2", std::string(4096, '\0'));
  CHECK(ReadFlightRecords(folder.path(), 4).empty());
  CHECK(ReadFlightRecords("/nonexistent", 4).empty());
}

int CodeOf(const std::string& path, const std::string& text) {
  try {
    ResultFile(path).Write(text);
  } catch (const LaunchError& error) {
    CHECK_THAT(error.what(), Catch::Contains(path));
    return static_cast<int>(error.code());
  }
  return 0;
}

TEST_CASE("a result replaces the old file and an unwritable result gives exit code 73") {
  const testing::TemporaryFolder folder;
  const std::string file = folder.Write("result", std::string(1000, 'x'));
  CHECK(CodeOf(file, "[]\n") == 0);
  CHECK(std::filesystem::file_size(file) == 3);
  CHECK(CodeOf(folder.path() + "/new", "[]\n") == 0);
  CHECK(CodeOf("/dev/null", "[]\n") == 0);
  CHECK(CodeOf(folder.path() + "/no/such/folder", "") == 73);
  CHECK(CodeOf(folder.path(), "") == 73);
  CHECK(CodeOf("/dev/full", "[]\n") == 73);
}

}  // namespace
}  // namespace dtrun::launcher

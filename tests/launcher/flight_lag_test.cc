#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/flight_record.h"
#include "dtrun/types.h"
#include "launcher/report/flight_report.h"
#include "tests/support/json.h"

namespace dtrun::launcher {
namespace {

using base::CollectiveKind;
using base::FlightOperation;
using base::FlightRecord;
using base::FlightState;
using Operations = std::vector<FlightOperation>;

FlightOperation Operation(
    uint64_t sequence, FlightState state, const std::string& communicator = "world",
    CollectiveKind kind = CollectiveKind::kAllReduce) {
  FlightOperation operation;
  operation.communicator = communicator;
  operation.sequence = sequence;
  operation.call.count = 16384;
  operation.call.before = operation.call.after = 1;
  operation.call.kind = static_cast<uint8_t>(kind);
  operation.call.dtype = static_cast<uint8_t>(DType::kF32);
  operation.state = state;
  return operation;
}

FlightOperation Done(uint64_t sequence, const std::string& communicator = "world") {
  return Operation(sequence, FlightState::kDone, communicator);
}
FlightOperation Waits(uint64_t sequence, const std::string& communicator = "world") {
  return Operation(sequence, FlightState::kStarted, communicator);
}

FlightRecord Rank(int rank, Operations operations) {
  FlightRecord record;
  record.rank = rank;
  record.operations = std::move(operations);
  return record;
}

std::string LagTextOf(const std::vector<FlightRecord>& records) {
  const std::vector<FlightLag> lags = FindLags(records);
  return lags.size() == 1 ? LagText(lags[0]) : std::to_string(lags.size()) + " lags";
}

const std::string kCall = ", all_reduce (f32, 16384 elements, sum)";

TEST_CASE("a rank is behind by the collectives that it has not called") {
  const Operations front = {Done(120), Waits(121)};
  CHECK(
      LagTextOf(
          {Rank(0, front), Rank(1, {Done(117), Done(118)}), Rank(2, front), Rank(3, front)}) ==
      "rank 1 is 3 collectives behind on world: it last finished #118" + kCall +
          "; ranks 0, 2 and 3 wait in #121" + kCall);
}

TEST_CASE("a rank with several collectives in flight waits in the first of them") {
  CHECK(
      LagTextOf({Rank(0, {Done(120), Waits(121), Waits(122), Waits(123)}), Rank(1, {Done(120)})}) ==
      "rank 1 is 1 collective behind on world: it last finished #120" + kCall +
          "; rank 0 waits in #121" + kCall);
}

TEST_CASE("ranks with the same lag in the same collective are named together as a range") {
  std::vector<FlightRecord> records = {Rank(0, {Waits(9)})};
  for (int rank = 1; rank < 64; ++rank) records.push_back(Rank(rank, {Waits(7)}));
  CHECK(
      LagTextOf(records) == "ranks 1-63 are 2 collectives behind on world: they wait in #7" +
                                kCall + "; rank 0 waits in #9" + kCall);
}

TEST_CASE("a rank that called no collective is behind on the world only") {
  CHECK(
      LagTextOf({Rank(0, {Waits(2)}), Rank(1, {})}) ==
      "rank 1 is 2 collectives behind on world: it has called none; rank 0 waits in #2" + kCall);
  CHECK(LagTextOf({Rank(0, {Waits(2, "world/1:0")}), Rank(1, {})}) == "0 lags");
}

TEST_CASE("sequence numbers are compared only within one communicator") {
  CHECK(LagTextOf({Rank(0, {Waits(9, "world/1")}), Rank(1, {Done(3, "world/2")})}) == "0 lags");
  CHECK_THAT(
      LagTextOf(
          {Rank(0, {Done(50), Waits(4, "world/1")}), Rank(1, {Done(50), Done(3, "world/1")})}),
      Catch::StartsWith("rank 1 is 1 collective behind on world/1: "));
}

TEST_CASE("no rank is behind if no rank waits for another") {
  CHECK(LagTextOf({}) == "0 lags");
  CHECK(LagTextOf({Rank(0, {Done(5)}), Rank(1, {Done(3)})}) == "0 lags");
  CHECK(LagTextOf({Rank(0, {Waits(5)}), Rank(1, {Waits(5)})}) == "0 lags");
}

TEST_CASE("a full record without entries of the world proves no lag on the world") {
  Operations others;
  for (uint64_t i = 1; i <= base::kFlightEntries; ++i) others.push_back(Done(i, "world/1"));
  CHECK(LagTextOf({Rank(0, {Waits(2)}), Rank(1, others)}) == "0 lags");
}

TEST_CASE("communicator names that may be cut off are not compared") {
  const std::string name(base::FlightEntry::kNameWords * 8 - 1, 'w');
  CHECK(LagTextOf({Rank(0, {Waits(2, name)}), Rank(1, {Done(1, name)})}) == "0 lags");
}

TEST_CASE("sequence numbers that restart belong to a new communicator of the same name") {
  const Operations earlier = {Done(7), Done(8)};
  Operations front = earlier, behind = earlier;
  front.insert(front.end(), {Done(1), Waits(2)});
  behind.push_back(Done(1));
  CHECK_THAT(
      LagTextOf({Rank(0, front), Rank(1, behind)}),
      Catch::StartsWith("rank 1 is 1 collective behind on world: it last finished #1,"));
}

TEST_CASE("messages do not count as collectives") {
  const auto send = Operation(9, FlightState::kStarted, "world", CollectiveKind::kSend);
  CHECK(LagTextOf({Rank(0, {send}), Rank(1, {Done(1)})}) == "0 lags");
}

TEST_CASE("a rank that gave up waiting counts as waiting but another failed rank does not") {
  FlightRecord gave_up = Rank(0, {Done(1), Operation(2, FlightState::kFailed)});
  CHECK(LagTextOf({gave_up, Rank(1, {Done(1)})}) == "0 lags");
  gave_up.gave_up = "gave up";
  CHECK_THAT(
      LagTextOf({gave_up, Rank(1, {Done(1)})}),
      Catch::StartsWith("rank 1 is 1 collective behind") && Catch::Contains("rank 0 waits in #2"));
}

TEST_CASE("many ranks with different lags still give a short line") {
  std::vector<FlightRecord> records = {Rank(0, {Waits(500)})};
  for (int rank = 1; rank < 100; ++rank)
    records.push_back(Rank(rank, {Done(static_cast<uint64_t>(rank))}));
  CHECK(LagTextOf(records).size() < 1500);
  CHECK_THAT(
      LagTextOf(records), Catch::Contains("; 91 other ranks are behind too; rank 0 waits in"));
}

TEST_CASE("a lag has the same facts as JSON") {
  const auto lags = FindLags({Rank(0, {Waits(3)}), Rank(1, {Done(1)}), Rank(2, {})});
  REQUIRE(lags.size() == 1);
  CHECK(
      JsonOf(lags[0]) ==
      nlohmann::json{
          {"communicator", "world"},
          {"waiting", {0}},
          {"waiting_in", "#3" + kCall},
          {"behind",
           {{{"rank", 1}, {"collectives", 2}, {"last", "#1" + kCall}, {"finished", true}},
            {{"rank", 2}, {"collectives", 3}, {"last", nullptr}, {"finished", false}}}}});
}

}  // namespace
}  // namespace dtrun::launcher

// The checks of one rank's arguments, and the comparison of the calls of all ranks.

#include "ops/collective/collective.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "dtrun/error.h"

namespace {

using dtrun::Buffer;
using dtrun::DType;
using dtrun::ErrorCode;
using dtrun::ReduceOp;
using dtrun::ops::Call;
using dtrun::ops::Called;
using dtrun::ops::Calls;
using dtrun::ops::Collective;
using dtrun::ops::CollectiveKind;
using dtrun::ops::Counts;
using dtrun::ops::Members;
using dtrun::ops::Range;

using K = CollectiveKind;

// Memory for buffers. No test reads the elements.
float storage[64];

Buffer Floats(uint64_t count, uint64_t first = 0) { return Buffer(storage + first, count); }

Collective Of(K kind, Buffer input, Buffer output) {
  Collective collective;
  collective.kind = kind;
  collective.input = input;
  collective.output = output;
  return collective;
}

// The error of rank 1 of 3, "" if the call is valid.
std::string Refusal(const Collective& collective, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    dtrun::ops::CheckArguments(collective, 1, 3);
  } catch (const dtrun::Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

TEST_CASE("a buffer needs memory and a valid type and a possible size and the right device") {
  Collective c = Of(K::kAllReduce, Buffer(nullptr, 4, DType::kF32), Floats(4));
  CHECK(Refusal(c) == "all_reduce: the input is null but has 4 elements");
  c = Of(K::kAllReduce, Floats(4), Buffer(nullptr, 4, DType::kF32));
  CHECK(Refusal(c) == "all_reduce: the output is null but has 4 elements");
  c = Of(K::kAllReduce, Buffer(nullptr, 0, DType::kF32), Buffer(nullptr, 0, DType::kF32));
  CHECK(Refusal(c) == "");
  c = Of(K::kAllGather, Buffer(storage, 4, static_cast<DType>(13)), Floats(12));
  CHECK(Refusal(c) == "all_gather: the input has dtype 13, which does not exist");
  c = Of(K::kAllReduce, Floats(uint64_t{1} << 62), Floats(uint64_t{1} << 62));
  CHECK(
      Refusal(c) ==
      "all_reduce: the input has 4611686018427387904 elements: more than memory can hold");
  c = Of(K::kAllReduce, Floats(4), Buffer(storage, 4, DType::kI32));
  CHECK(Refusal(c) == "all_reduce: the input is of f32, but the output of i32");
  c = Of(K::kAllReduce, Floats(4), Floats(4));
  c.output.device = 2;
  CHECK(
      Refusal(c) ==
      "all_reduce: the input lies in host memory, the output on GPU 2 (stream 0); expected both on "
      "one GPU and in one stream");
  c.input.device = 2;
  CHECK(Refusal(c) == "");
  c.input.stream = reinterpret_cast<void*>(16);
  CHECK(
      Refusal(c) ==
      "all_reduce: the input lies on GPU 2 (stream 0x10), the output on GPU 2 (stream 0); expected "
      "both on one GPU and in one stream");
  c.kind = K::kReduceUpdate;
  c.send_counts = {4, 0, 0};
  CHECK(
      Refusal(c, ErrorCode::kUnavailable) ==
      "reduce_update: the input lies on GPU 2; shares are updated in host memory alone");
}

TEST_CASE("a root must be a rank and a peer must be another rank") {
  Collective c = Of(K::kBroadcast, Floats(4), Floats(4));
  c.root = 3;
  CHECK(Refusal(c) == "broadcast: root is 3; expected a rank from 0 to 2");
  c.root = -1;
  CHECK(Refusal(c) == "broadcast: root is -1; expected a rank from 0 to 2");
  for (const K kind : {K::kReduce, K::kGather, K::kScatter}) {
    c.kind = kind;
    CHECK(Refusal(c) == std::string(NameOf(kind)) + ": root is -1; expected a rank from 0 to 2");
  }
  c.kind = K::kSend;
  c.root = 7;
  CHECK(Refusal(c) == "send: the peer is 7; expected a rank from 0 to 2");
  c.kind = K::kReceive;
  c.root = 1;
  CHECK(Refusal(c) == "receive: the peer is 1, this rank itself; expected another one");
}

TEST_CASE("unknown reduce ops and infinite scales and scaled bools are refused") {
  Collective c = Of(K::kAllReduce, Floats(4), Floats(4));
  c.op = static_cast<ReduceOp>(6);
  CHECK(Refusal(c) == "all_reduce: reduce op 6 does not exist");
  c.op = ReduceOp::kAdasum;
  CHECK(
      Refusal(c) ==
      "all_reduce: the reduce op is adasum, which only named tensors support; expected sum, "
      "average, min, max or product");
  c.op = static_cast<ReduceOp>(-1);
  CHECK(Refusal(c) == "all_reduce: reduce op -1 does not exist");
  c.op = ReduceOp::kSum;
  c.scale.after = 1 / 0.0;
  CHECK(Refusal(c) == "all_reduce: the scale is 1 before and inf after; expected finite numbers");
  c.scale = {0.0 / 0.0, 1};
  CHECK(Refusal(c).find("expected finite numbers") != std::string::npos);
  c.scale = {2, 1};
  c.input.dtype = c.output.dtype = DType::kBool;
  CHECK(Refusal(c) == "all_reduce: bools cannot be scaled");
  c.kind = K::kAllGather;  // not a reduction, so the scale is ignored
  c.output.count = 12;
  c.input = Buffer(storage + 40, 4, DType::kBool);
  CHECK(Refusal(c) == "");
}

TEST_CASE("the counts of the input and the output must match") {
  CHECK(
      Refusal(Of(K::kAllReduce, Floats(4), Floats(5, 8))) ==
      "all_reduce: the output has 5 elements; expected 4 (as many as the input)");
  CHECK(
      Refusal(Of(K::kAllGather, Floats(4), Floats(13, 8))) ==
      "all_gather: the output has 13 elements; expected 12 (3 ranks of 4)");
  CHECK(
      Refusal(Of(K::kReduceScatter, Floats(7), Floats(3, 8))) ==
      "reduce_scatter: the output has 3 elements; expected 2 (this rank's share of the input)");
  CHECK(
      Refusal(Of(K::kAllToAll, Floats(7), Floats(7, 8))) ==
      "all_to_all: the input has 7 elements, which 3 ranks cannot share evenly; give counts");
  CHECK(
      Refusal(Of(K::kAllToAll, Floats(6), Floats(9, 8))) ==
      "all_to_all: the output has 9 elements; expected 6 (as many as the input)");
  Collective at_root = Of(K::kGather, Floats(4), Floats(8, 8));
  at_root.root = 1;
  CHECK(Refusal(at_root) == "gather: the output has 8 elements; expected 12 (3 ranks of 4)");
  at_root = Of(K::kScatter, Floats(8), Floats(4, 8));
  at_root.root = 1;
  CHECK(Refusal(at_root) == "scatter: the input has 8 elements; expected 12 (3 ranks of 4)");
  at_root = Of(K::kReduce, Floats(8), Floats(4, 8));
  at_root.root = 1;
  CHECK(Refusal(at_root) == "reduce: the output has 4 elements; expected 8 (as many as the input)");
}

TEST_CASE("a rank other than the root may pass any values for the buffer and counts of the root") {
  const Buffer nonsense(nullptr, 99, static_cast<DType>(99));
  CHECK(Refusal(Of(K::kReduce, Floats(4), nonsense)) == "");
  CHECK(Refusal(Of(K::kGather, Floats(4), nonsense)) == "");
  CHECK(Refusal(Of(K::kScatter, nonsense, Floats(4))) == "");
  CHECK(Refusal(Of(K::kBroadcast, nonsense, Floats(4))) == "");

  // A backend has room for one count per rank, so ignored counts are dropped first.
  Collective gather = Of(K::kGather, Floats(4), nonsense);
  gather.receive_counts = Counts(1000, 1);
  gather.send_counts = Counts(1000, 1);
  Collective at_root = gather;
  at_root.root = 1;
  dtrun::ops::DropIgnoredCounts(gather, 1);
  dtrun::ops::DropIgnoredCounts(at_root, 1);
  CHECK(gather.receive_counts.empty());
  CHECK(gather.send_counts.empty());
  CHECK(at_root.receive_counts.size() == 1000);
  CHECK(at_root.send_counts.empty());
}

TEST_CASE("counts by rank need one entry per rank and must add up to the buffer") {
  Collective c = Of(K::kAllGather, Floats(2), Floats(6, 8));
  c.receive_counts = {1, 2};
  CHECK(
      Refusal(c) ==
      "all_gather: the sum of the receive counts: found 2 counts; expected one for each of 3 "
      "ranks");
  c.receive_counts = {1, 2, 4};
  CHECK(
      Refusal(c) ==
      "all_gather: the output has 6 elements; expected 7 (the sum of the receive counts)");
  c.receive_counts = {2, 3, 1};
  CHECK(Refusal(c) == "all_gather: the input has 2 elements; expected 3 (this rank's own count)");
  c.receive_counts = {3, 2, 1};
  CHECK(Refusal(c) == "");

  c = Of(K::kReduceScatter, Floats(6), Floats(2, 8));
  c.send_counts = {1, 2, 4};
  CHECK(
      Refusal(c) == "reduce_scatter: the input has 6 elements; expected 7 (the sum of the shares)");
  c.send_counts = {1, 1, 4};
  CHECK(
      Refusal(c) ==
      "reduce_scatter: the output has 2 elements; expected 1 (this rank's share of the input)");

  c = Of(K::kAllToAll, Floats(6), Floats(4, 8));
  c.send_counts = {1, 2, 3};
  CHECK(Refusal(c) == "all_to_all: found send counts, but no receive counts; expected both");
  c.receive_counts = {1, 2, 2};
  CHECK(
      Refusal(c) ==
      "all_to_all: the output has 4 elements; expected 5 (the sum of the receive counts)");
  c.send_counts = {1, 2, 4};
  CHECK(
      Refusal(c) ==
      "all_to_all: the input has 6 elements; expected 7 (the sum of the send counts)");
}

TEST_CASE("a sum of counts that overflows 64 bits is refused") {
  const uint64_t half = uint64_t{1} << 63;
  Collective c = Of(K::kAllToAll, Floats(0), Floats(0, 8));
  c.send_counts = {half, half, 0};
  c.receive_counts = {0, 0, 0};
  CHECK(Refusal(c) == "all_to_all: the sum of the send counts overflows");
  c = Of(K::kReduceScatter, Floats(0), Floats(0, 8));
  c.send_counts = {half, half, 0};
  CHECK(Refusal(c) == "reduce_scatter: the sum of the shares overflows");
  // 3 times this is 2^64 + 2. A u8 buffer of this size is possible.
  const uint64_t third = (UINT64_MAX / 3) + 1;
  c = Of(K::kAllGather, Buffer(storage, third, DType::kU8), Buffer(storage, 2, DType::kU8));
  CHECK(
      Refusal(c) ==
      "all_gather: 3 ranks of 6148914691236517206 elements are more than memory can hold");
}

TEST_CASE("buffers may overlap only if one is the rank's own place in the other") {
  const std::string overlap =
      ": the input and the output overlap; expected the same memory or separate memory";
  CHECK(Refusal(Of(K::kAllReduce, Floats(8), Floats(8))) == "");
  CHECK(Refusal(Of(K::kAllReduce, Floats(8), Floats(8, 8))) == "");
  CHECK(Refusal(Of(K::kAllReduce, Floats(8), Floats(8, 7))) == "all_reduce" + overlap);
  CHECK(Refusal(Of(K::kAllGather, Floats(4, 4), Floats(12))) == "");
  CHECK(Refusal(Of(K::kAllGather, Floats(4, 0), Floats(12))) == "all_gather" + overlap);
  CHECK(Refusal(Of(K::kReduceScatter, Floats(7), Floats(2, 3))) == "");
  CHECK(Refusal(Of(K::kReduceScatter, Floats(7), Floats(2, 2))) == "reduce_scatter" + overlap);
  CHECK(Refusal(Of(K::kAllToAll, Floats(6), Floats(6))) == "all_to_all" + overlap);

  Collective c = Of(K::kGather, Floats(2, 5), Floats(9));
  c.root = 1;
  c.receive_counts = {5, 2, 2};
  CHECK(Refusal(c) == "");
  c.input = Floats(2, 4);
  CHECK(Refusal(c) == "gather" + overlap);
  c = Of(K::kScatter, Floats(9), Floats(2, 5));
  c.root = 1;
  c.send_counts = {5, 2, 2};
  CHECK(Refusal(c) == "");
  c.output = Floats(2, 6);
  CHECK(Refusal(c) == "scatter" + overlap);

  // An empty input does not overlap.
  c = Of(K::kAllGather, Floats(0, 2), Floats(9));
  c.receive_counts = {5, 0, 4};
  CHECK(Refusal(c) == "");
}

// --- all ranks ----------------------------------------------------------------------------------

// The calls of all ranks, in rank order.
class Job {
 public:
  explicit Job(std::vector<Collective> by_rank) : collectives_(std::move(by_rank)) {
    for (size_t r = 0; r < collectives_.size(); ++r) {
      calls_.push_back(dtrun::ops::CallOf(collectives_[r], static_cast<int>(r)));
    }
    const auto table = [](const Counts& counts) {
      return counts.empty() ? nullptr : counts.data();
    };
    for (size_t r = 0; r < collectives_.size(); ++r) {
      called_.push_back(
          {&calls_[r], table(collectives_[r].send_counts), table(collectives_[r].receive_counts)});
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Calls calls() const { return Calls(called_.data(), static_cast<int>(called_.size())); }
  // The description of the mismatch, "" if the calls agree.
  std::string Disagreement() const {
    if (calls().Agree()) return "";
    return calls().Disagreement(Members::World(static_cast<int>(called_.size())));
  }

 private:
  std::vector<Collective> collectives_;
  std::vector<Call> calls_;
  std::vector<Called> called_;
};

TEST_CASE("calls that differ are described with the call of each rank") {
  Collective sum = Of(K::kAllReduce, Floats(4), Floats(4));
  Collective max = sum, longer = Of(K::kAllReduce, Floats(5), Floats(5)), ints = sum, scaled = sum;
  max.op = ReduceOp::kMax;
  ints.input.dtype = ints.output.dtype = DType::kI32;
  scaled.scale = {1, 0.5};
  CHECK(Job({sum, sum, sum}).Disagreement() == "");
  CHECK(
      Job({sum, max, sum}).Disagreement() ==
      "rank 1 called all_reduce (f32, 4 elements, max); ranks 0 and 2 called all_reduce (f32, 4 "
      "elements, sum)");
  CHECK(
      Job({sum, longer}).Disagreement() ==
      "rank 0 called all_reduce (f32, 4 elements, sum); rank 1 called all_reduce (f32, 5 "
      "elements, sum)");
  CHECK(
      Job({ints, sum}).Disagreement() ==
      "rank 1 called all_reduce (f32, 4 elements, sum); rank 0 called all_reduce (i32, 4 "
      "elements, sum)");
  CHECK(
      Job({sum, scaled}).Disagreement() ==
      "rank 0 called all_reduce (f32, 4 elements, sum); rank 1 called all_reduce (f32, 4 elements, "
      "sum, scaled by 0.5 after)");
  CHECK(
      Job({Of(K::kBarrier, {}, {}), sum}).Disagreement() ==
      "rank 1 called all_reduce (f32, 4 elements, sum); rank 0 called barrier");
}

TEST_CASE("factors that round to the same text are printed with all digits") {
  Collective third = Of(K::kAllReduce, Floats(4), Floats(4));
  third.scale.before = 1.0 / 3;
  Collective almost = third, divided = third;
  almost.scale.before = 0.333333;
  CHECK(
      Job({third, almost}).Disagreement() ==
      "rank 1 called all_reduce (f32, 4 elements, sum, scaled by 0.333333 before) with factors "
      "0.33333299999999999 before and 1 after; rank 0 called all_reduce (f32, 4 elements, sum, "
      "scaled by 0.333333 before) with factors 0.33333333333333331 before and 1 after");
  divided.divisor = 6;
  CHECK(Job({third, divided}).Disagreement().find("divided by 6") != std::string::npos);
}

TEST_CASE("calls with different roots or shares are described") {
  Collective at_0 = Of(K::kBroadcast, Floats(4), Floats(4)), at_1 = at_0;
  at_1.root = 1;
  CHECK(
      Job({at_0, at_1, at_0}).Disagreement() ==
      "ranks 0 and 2 called broadcast (f32, 4 elements, root 0); rank 1 called broadcast (f32, 4 "
      "elements, root 1)");
  Collective dealt = Of(K::kReduceScatter, Floats(4), Floats(2, 8)), shares = dealt, other = dealt;
  shares.send_counts = {3, 1};
  other.send_counts = {1, 3};
  CHECK(Job({shares, shares}).Disagreement() == "");
  CHECK(
      Job({shares, other}).Disagreement() ==
      "rank 1 called reduce_scatter (f32, 4 elements, sum) with shares of 1, 3; rank 0 called "
      "reduce_scatter (f32, 4 elements, sum) with shares of 3, 1");
  CHECK(
      Job({dealt, shares}).Disagreement() ==
      "rank 0 called reduce_scatter (f32, 4 elements, sum); rank 1 called reduce_scatter (f32, 4 "
      "elements, sum) with shares of 3, 1");
}

TEST_CASE("a rank that expects another count than its peer sends is named with its peer") {
  Collective a = Of(K::kAllToAll, Floats(3), Floats(1, 8)),
             b = Of(K::kAllToAll, Floats(2), Floats(4, 8));
  a.send_counts = {1, 2}, a.receive_counts = {1, 0};
  b.send_counts = {0, 2}, b.receive_counts = {2, 2};
  CHECK(Job({a, b}).Disagreement() == "");
  b.receive_counts = {3, 2};
  CHECK(
      Job({a, b}).Disagreement() ==
      "all_to_all: rank 0 sends 2 elements to rank 1, which expects 3");

  Collective three = Of(K::kGather, Floats(3), {}), two = Of(K::kGather, Floats(2), {});
  three.receive_counts = {3, 3};
  CHECK(
      Job({three, two}).Disagreement() ==
      "gather: rank 1 sends 2 elements to rank 0, which expects 3");
  Collective all = Of(K::kScatter, Floats(6), Floats(3, 8)), part = Of(K::kScatter, {}, Floats(4));
  CHECK(
      Job({all, part}).Disagreement() ==
      "rank 0 called scatter (f32, 3 elements, root 0); rank 1 called scatter (f32, 4 elements, "
      "root 0)");
  all.send_counts = {3, 3};
  CHECK(
      Job({all, part}).Disagreement() ==
      "scatter: rank 0 sends 3 elements to rank 1, which expects 4");
}

// The parts that a rank sends must cover its input in order. The parts that it receives must cover
// its output.
void CheckTiles(const Calls& calls, int size) {
  for (int r = 0; r < size; ++r) {
    uint64_t sent = 0, received = 0;
    for (int other = 0; other < size; ++other) {
      const Range out = calls.InInput(r, other), in = calls.InOutput(other, r);
      CHECK(out.begin == sent);
      CHECK(in.begin == received);
      CHECK(out.count == calls.InOutput(r, other).count);
      sent += out.count;
      received += in.count;
    }
    CHECK(calls.InputCount(r) == sent);
    CHECK(calls.OutputCount(r) == received);
  }
}

TEST_CASE("the parts that ranks exchange cover every input and every output") {
  Collective a = Of(K::kAllToAll, Floats(6), Floats(4, 8)),
             b = Of(K::kAllToAll, Floats(2), Floats(4, 8));
  a.send_counts = {2, 4}, a.receive_counts = {2, 2};
  b.send_counts = {2, 0}, b.receive_counts = {4, 0};
  const Job uneven({a, b});
  REQUIRE(uneven.Disagreement() == "");
  CheckTiles(uneven.calls(), 2);
  const Collective even = Of(K::kAllToAll, Floats(6), Floats(6, 8));
  CheckTiles(Job({even, even, even}).calls(), 3);

  // Given shares may be empty. Dealt shares differ by at most one.
  Collective shares = Of(K::kReduceScatter, Floats(7), Floats(0, 8)), dealt = shares;
  shares.send_counts = {0, 7, 0};
  const Job given({shares, shares, shares}), without({dealt, dealt, dealt});
  CHECK(given.calls().Share(1).count == 7);
  CHECK(given.calls().Share(2).begin == 7);
  CHECK(without.calls().Share(0).count == 3);
  CHECK(without.calls().Share(2).begin == 5);
  CHECK(dtrun::ops::DealRows(7, 1, 3) == Counts{3, 2, 2});
  CHECK(dtrun::ops::DealRows(2, 10, 3) == Counts{10, 10, 0});
}

TEST_CASE("a description has the kind and type and count and op and root of an operation") {
  Collective c = Of(K::kReduce, Floats(4), Floats(4));
  c.root = 2;
  c.scale.before = 0.25;
  CHECK(Describe(c) == "reduce (f32, 4 elements, sum, scaled by 0.25 before, root 2)");
  CHECK(Describe(Of(K::kBarrier, {}, {})) == "barrier");
  Collective message = Of(K::kReceive, {}, Floats(3));
  message.root = 1;
  CHECK(Describe(message) == "receive (f32, 3 elements, from rank 1)");
  const Call call = dtrun::ops::CallOf(message, 0);
  CHECK(
      NameOperation(call, 4, Members::World(2).Subset({1, 0}, "/1")) ==
      "message #4 of world/1, receive (f32, 3 elements, from rank 1)");
}

}  // namespace

// The announcements of ranks and the table of tensors, without communication. Batches of tensors.

#include "runtime/named/tensor_table.h"

#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "runtime/named/batch_transfer.h"
#include "runtime/named/named_request.h"

namespace dtrun::testing {
namespace {

using base::Text;
using runtime::named::Batch;
using runtime::named::Kind;
using runtime::named::Outcome;
using runtime::named::Part;
using runtime::named::Ready;
using runtime::named::Request;
using runtime::named::TensorTable;
using Names = std::vector<std::string>;

Request Floats(uint64_t count) {
  return {.kind = Kind::kAllReduce, .dtype = DType::kF32, .shape = {count}};
}

// Two ranks, each with a table and its submitted tensors.
class TwoRanks {
 public:
  explicit TwoRanks(size_t capacity) {
    for (int r = 0; r < 2; ++r)
      tables_.push_back(std::make_unique<TensorTable>(ops::Members::World(2), r, capacity));
  }

  void Submit(int rank, const std::string& name, const Request& request) {
    TensorTable& table = *tables_[static_cast<size_t>(rank)];
    Part& part = parts_.emplace_back();
    part.tensor = &table.At(name);
    part.tensor->mine = &part;
    const auto& before = part.tensor->requests->by_rank[static_cast<size_t>(rank)];
    part.request =
        before != nullptr && *before == request ? before : std::make_shared<Request>(request);
    table.Announce(part);
  }
  void SubmitEverywhere(const std::string& name, const Request& request) {
    for (int r = 0; r < 2; ++r) Submit(r, name, request);
  }

  // Does a round. Returns the names that are ready, which must be equal on both ranks.
  Names Round() {
    std::vector<std::string> news;
    for (const auto& table : tables_) news.push_back(table->TakeNews());
    bytes_ = news[0].size();
    std::vector<Names> ready(2);
    for (size_t r = 0; r < 2; ++r) {
      Outcome outcome = tables_[r]->Apply({news[0], news[1]});
      for (const Ready& one : outcome.ready) {
        ready[r].emplace_back(one.tensor->name);
        End(*tables_[r], *one.tensor->mine);
      }
      for (const auto& failed : outcome.failed) {
        errors_.push_back(failed.refusal.text);
        End(*tables_[r], *failed.part);
      }
    }
    CHECK(ready[0] == ready[1]);
    return ready[0];
  }

  // The size of rank 0's announcement in the last round.
  size_t bytes() const { return bytes_; }
  const Names& errors() const { return errors_; }
  TensorTable& table(size_t rank) { return *tables_[rank]; }

 private:
  static void End(TensorTable& table, Part& part) {
    runtime::named::Tensor& tensor = *part.tensor;
    tensor.mine = nullptr;
    part.tensor = nullptr;
    table.Release(tensor);
  }

  std::vector<std::unique_ptr<TensorTable>> tables_;
  std::deque<Part> parts_;
  size_t bytes_ = 0;
  Names errors_;
};

TEST_CASE("a thousand repeated tensors are announced in a few bytes") {
  TwoRanks ranks(1024);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 1000; ++i)
      ranks.SubmitEverywhere(Text("layer", i, "/gradient"), Floats(256));
    CHECK(ranks.Round().size() == 1000);
    if (step == 0) {
      CHECK(ranks.bytes() > 15000);
    } else {
      CHECK(ranks.bytes() < 16);
    }
  }
}

TEST_CASE("a tensor with a new shape keeps its place in the cache and announces only the shape") {
  TwoRanks ranks(4);
  const std::string name(100, 'x');
  ranks.SubmitEverywhere(name, Floats(1));
  CHECK(ranks.Round() == Names{name});
  for (uint64_t n = 2; n < 50; ++n) {
    ranks.SubmitEverywhere(name, Floats(n));
    CHECK(ranks.Round() == Names{name});
    CHECK(ranks.bytes() < 24);
  }
  ranks.Submit(0, name, Floats(3));
  ranks.Submit(1, name, Floats(4));
  CHECK(ranks.Round().empty());
  CHECK(ranks.errors().size() == 2);
  ranks.SubmitEverywhere(name, Floats(4));
  CHECK(ranks.Round() == Names{name});
}

TEST_CASE("names without a place in the bounded cache work too") {
  TwoRanks ranks(2);
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 6; ++i) ranks.SubmitEverywhere(Text(i), Floats(1));
    CHECK(ranks.Round().size() == 6);
  }
}

TEST_CASE("a cycle of a few more names than places keeps most places") {
  TwoRanks ranks(100);
  const auto step = [&] {
    for (int i = 0; i < 110; ++i) ranks.SubmitEverywhere(Text("name number ", i), Floats(1));
    CHECK(ranks.Round().size() == 110);
    return ranks.bytes();
  };
  step();
  for (int i = 0; i < 5; ++i) CHECK(step() < 10 * 40);  // ten names are announced in full
}

TEST_CASE("unused names lose their places in the cache") {
  TwoRanks ranks(10);
  for (int i = 0; i < 10; ++i) ranks.SubmitEverywhere(Text("old ", i), Floats(1));
  ranks.Round();
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 10; ++i) ranks.SubmitEverywhere(Text("new ", i), Floats(1));
    CHECK(ranks.Round().size() == 10);
  }
  CHECK(ranks.bytes() < 16);
  for (int i = 0; i < 10; ++i) ranks.SubmitEverywhere(Text("old ", i), Floats(1));
  CHECK(ranks.Round().size() == 10);
}

TEST_CASE("a tensor is ready in the round in which the last rank announces it") {
  TwoRanks ranks(8);
  ranks.Submit(0, "a", Floats(1));
  ranks.Submit(1, "b", Floats(1));
  CHECK(ranks.Round().empty());
  CHECK(ranks.table(0).my_pending() == 1);
  CHECK(
      ranks.table(1).DescribeWait(*ranks.table(1).pending()[0]) ==
      "tensor 'a', all_reduce (f32[1], sum), submitted by rank 0, waits for rank 1; rank 1 "
      "submitted 'b' last, all_reduce (f32[1], sum)");
  ranks.Submit(1, "a", Floats(1));
  CHECK(ranks.Round() == Names{"a"});
  ranks.Submit(0, "b", Floats(1));
  CHECK(ranks.Round() == Names{"b"});
  CHECK(ranks.table(0).my_pending() == 0);
  CHECK(ranks.table(1).pending().empty());
}

TEST_CASE("an announcement with an invalid format is an error") {
  TensorTable table(ops::Members::World(1), 0, 8);
  CHECK_THROWS_WITH(table.Apply({""}), "named queue: the announcement of a rank cannot be read");
  const std::string unknown_slot("\x01\x05\x00\x00\x00\x00\x00\x00", 8);
  CHECK_THROWS_WITH(
      table.Apply({unknown_slot}), "named queue: a rank announced a name that is not in the cache");
}

// --- batches ------------------------------------------------------------------------------------

Ready ReadyOf(const Request& request) {
  auto requests = std::make_shared<runtime::named::Requests>();
  requests->by_rank.assign(2, std::make_shared<Request>(request));
  return {nullptr, requests, {}};
}

// The bytes of the tensors of each batch.
std::vector<std::vector<uint64_t>> Planned(const std::vector<Request>& requests, uint64_t most) {
  std::vector<Ready> ready;
  for (const Request& request : requests) ready.push_back(ReadyOf(request));
  std::vector<std::vector<uint64_t>> planned;
  for (const Batch& batch : runtime::named::PlanBatches(ready, 2, most)) {
    planned.emplace_back();
    for (const auto& item : batch) planned.back().push_back(item.any->bytes());
  }
  return planned;
}

TEST_CASE("a batch skips tensors of other types and stays within the size limit") {
  const auto of = [](DType dtype, uint64_t count) {
    return Request{.kind = Kind::kAllReduce, .dtype = dtype, .shape = {count}};
  };
  using Planning = std::vector<std::vector<uint64_t>>;
  CHECK(
      Planned(
          {of(DType::kF32, 10), of(DType::kI64, 2), of(DType::kF32, 5), of(DType::kI64, 1),
           of(DType::kF32, 8), of(DType::kF32, 1000), of(DType::kF32, 1)},
          64) == Planning{{40, 20}, {16, 8}, {32, 4}, {4000}});
  Request other = of(DType::kF32, 1);
  other.after = 0.5;
  CHECK(Planned({of(DType::kF32, 1), other, of(DType::kF32, 1)}, 64) == Planning{{4, 4}, {4}});
  CHECK(Planned({of(DType::kF32, 1), of(DType::kF32, 1)}, 0) == Planning{{4}, {4}});
  CHECK(Planned({{.kind = Kind::kBarrier}}, 64).empty());
}

TEST_CASE("broadcasts of different types share a batch if they have the same root") {
  const auto from = [](int root, DType dtype) {
    return Request{.kind = Kind::kBroadcast, .dtype = dtype, .root = root, .shape = {1}};
  };
  using Planning = std::vector<std::vector<uint64_t>>;
  CHECK(
      Planned({from(0, DType::kF32), from(1, DType::kF32), from(0, DType::kF64)}, 64) ==
      Planning{{4, 8}, {4}});
}

}  // namespace
}  // namespace dtrun::testing

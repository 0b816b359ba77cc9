// Each step of a pipeline against its definition.

#include "models/data/pipeline.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "models/data/sampling.h"
#include "tests/models/data/pipeline_rig.h"

namespace dtrun::models {
namespace {

using Floats = std::vector<float>;

Ids Sorted(Ids ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

Ids Counted(int32_t begin, int32_t end) {
  Ids ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

TEST_CASE("take and skip and shard select examples by position") {
  CHECK(OrderOf(Numbers(5)) == Ids{0, 1, 2, 3, 4});
  CHECK(OrderOf(Numbers(5).Take(2)) == Ids{0, 1});
  CHECK(OrderOf(Numbers(5).Take(9)) == Ids{0, 1, 2, 3, 4});
  CHECK(OrderOf(Numbers(5).Skip(3)) == Ids{3, 4});
  CHECK(OrderOf(Numbers(8).Skip(1).Take(4).Skip(2)) == Ids{3, 4});
  CHECK(OrderOf(Numbers(8).Shard(3, 1)) == Ids{1, 4, 7});
  CHECK(OrderOf(Numbers(8).Shard(3, 2)) == Ids{2, 5});
  CHECK(Numbers(8).Shard(3, 1).examples() == 3);
  CHECK(Numbers(8).Shard(3, 2).examples() == 2);
  CHECK(Numbers(2).Shard(3, 2).examples() == 0);
}

TEST_CASE("a full shuffle uses the order of EpochOrder for its seed") {
  for (uint64_t epoch : {0, 1, 5}) {
    const auto order = EpochOrder(7, epoch, 100);
    CHECK(OrderOf(Numbers(100).Shuffle({.seed = 7}), epoch) == Ids(order.begin(), order.end()));
  }
}

TEST_CASE("without reshuffling every epoch has the same order") {
  const Pipeline once = Numbers(50).Shuffle({.reshuffle_each_epoch = false});
  CHECK(OrderOf(once, 0) == OrderOf(once, 3));
  CHECK(OrderOf(once, 0) != Counted(0, 50));
  const Pipeline buffered = Numbers(50).Shuffle({.buffer = 9, .reshuffle_each_epoch = false});
  CHECK(OrderOf(buffered, 0) == OrderOf(buffered, 3));
}

// The definition of a shuffle with a buffer, step by step.
Ids BufferShuffle(int32_t count, size_t buffer_size, uint64_t seed, uint64_t epoch) {
  ShuffleWords words(seed, epoch);
  Ids buffer, out;
  int32_t next = 0;
  while (true) {
    while (buffer.size() < buffer_size && next < count) buffer.push_back(next++);
    if (buffer.empty()) return out;
    const size_t drawn = words.Below(static_cast<uint32_t>(buffer.size()));
    out.push_back(buffer[drawn]);
    // The next example replaces the drawn example. If no example is left, the last of the buffer
    // does.
    buffer[drawn] = next < count ? next++ : buffer.back();
    if (out.size() + buffer.size() > static_cast<size_t>(count)) buffer.pop_back();
  }
}

TEST_CASE("a shuffle with a smaller buffer draws from the examples in the buffer") {
  for (size_t buffer : {1, 2, 10, 99}) {
    for (uint64_t epoch : {0, 1}) {
      const Ids order = OrderOf(Numbers(100).Shuffle({.buffer = buffer, .seed = 3}), epoch);
      CHECK(order == BufferShuffle(100, buffer, 3, epoch));
      CHECK(Sorted(order) == Counted(0, 100));
      for (size_t i = 0; i < order.size(); ++i) CHECK(order[i] < int32_t(i + buffer));
    }
  }
  CHECK(OrderOf(Numbers(9).Shuffle({.buffer = 1})) == Counted(0, 9));
}

TEST_CASE("Repeat after Shuffle gives each repetition every example once in its own order") {
  const Ids order = OrderOf(Numbers(20).Shuffle({}).Repeat(3));
  REQUIRE(order.size() == 60);
  std::set<Ids> orders;
  for (int i = 0; i < 3; ++i) {
    const Ids one(order.begin() + 20 * i, order.begin() + 20 * (i + 1));
    CHECK(Sorted(one) == Counted(0, 20));
    orders.insert(one);
  }
  CHECK(orders.size() == 3);
  CHECK(OrderOf(Numbers(20).Shuffle({}).Repeat(3), 1) != order);
}

TEST_CASE("Repeat before Shuffle mixes the repetitions") {
  const Ids order = OrderOf(Numbers(20).Repeat(3).Shuffle({}));
  REQUIRE(order.size() == 60);
  Ids expected;
  for (int32_t i = 0; i < 20; ++i) expected.insert(expected.end(), 3, i);
  CHECK(Sorted(order) == expected);
  CHECK(Sorted(Ids(order.begin(), order.begin() + 20)) != Counted(0, 20));
}

TEST_CASE("an epoch with an endless Repeat goes on and reshuffles each repetition") {
  const Pipeline pipeline = Numbers(4).Shuffle({}).Repeat().Batch(4);
  CHECK(pipeline.batches() == kInfinite);
  CHECK(pipeline.examples() == kInfinite);
  Iterator iterator(pipeline);
  std::set<Ids> orders;
  for (int i = 0; i < 30; ++i) {
    const Ids batch = LabelsOf(*iterator.Next());
    CHECK(Sorted(batch) == Counted(0, 4));
    orders.insert(batch);
  }
  CHECK(orders.size() > 10);
  CHECK(OrderOf(Numbers(4).Repeat().Take(6)) == Ids{0, 1, 2, 3, 0, 1});
  CHECK(Numbers(4).Take(0).Repeat().examples() == 0);
}

TEST_CASE("the last batch has the remaining examples or is dropped") {
  using Batches = std::vector<Ids>;
  CHECK(BatchesOf(Numbers(5).Batch(2)) == Batches{{0, 1}, {2, 3}, {4}});
  CHECK(BatchesOf(Numbers(5).Batch(2, Remainder::kDrop)) == Batches{{0, 1}, {2, 3}});
  CHECK(BatchesOf(Numbers(4).Batch(2)) == Batches{{0, 1}, {2, 3}});
  CHECK(BatchesOf(Numbers(3).Batch(8)) == Batches{{0, 1, 2}});
  CHECK(Numbers(5).Batch(2).batches() == 3);
  CHECK(Numbers(5).Batch(2, Remainder::kDrop).batches() == 2);
}

TEST_CASE("steps after Batch count batches and no batch spans two repetitions") {
  using Batches = std::vector<Ids>;
  const Pipeline batched = Numbers(5).Batch(2);
  CHECK(BatchesOf(batched.Repeat(2)) == Batches{{0, 1}, {2, 3}, {4}, {0, 1}, {2, 3}, {4}});
  CHECK(
      BatchesOf(Numbers(5).Repeat(2).Batch(2)) == Batches{{0, 1}, {2, 3}, {4, 0}, {1, 2}, {3, 4}});
  CHECK(BatchesOf(batched.Take(2)) == Batches{{0, 1}, {2, 3}});
  CHECK(BatchesOf(batched.Skip(2)) == Batches{{4}});
  CHECK(BatchesOf(batched.Skip(1).Repeat(3).Take(5)) == Batches{{2, 3}, {4}, {2, 3}, {4}, {2, 3}});
  CHECK(batched.Skip(1).Repeat(3).Take(5).batches() == 5);
  CHECK(batched.Repeat(3).examples() == 5);
}

TEST_CASE("an iterator goes from epoch to epoch and reports its position") {
  Iterator iterator(Numbers(5).Shuffle({}).Batch(2));
  for (uint64_t epoch : {0, 1, 2}) {
    for (uint64_t batch = 0; batch < 3; ++batch) {
      CHECK(iterator.position() == Position{epoch, batch});
      CHECK(iterator.Next()->position() == Position{epoch, batch});
    }
    CHECK(iterator.Next() == nullptr);
  }
}

MapFunction AddTo(float* seen_epoch) {
  return [seen_epoch](const MapCall& call) {
    *seen_epoch = static_cast<float>(call.epoch);
    *call.output = *call.input + 100;
    *call.label += 1000;
  };
}

TEST_CASE("a map changes values and labels and knows the example and the epoch") {
  float epoch = -1;
  Iterator iterator(Numbers(3).Skip(1).Map(AddTo(&epoch)).Batch(2), {4, 0});
  const Batch* batch = iterator.Next();
  CHECK(LabelsOf(*batch) == Ids{1001, 1002});
  CHECK(batch->inputs()[0] == 101);
  CHECK(batch->inputs()[1] == 102);
  CHECK(epoch == 4);
}

TEST_CASE("a map may change the shape of examples") {
  const Pipeline pipeline = Numbers(2)
                                .Map(
                                    {1, 2, 1},
                                    [](const MapCall& call) {
                                      call.output[0] = call.input[0];
                                      call.output[1] = -call.input[0];
                                    })
                                .Map({2, 2, 1}, [](const MapCall& call) {
                                  for (int i = 0; i < 4; ++i)
                                    call.output[i] = call.input[i % 2] + 1;
                                });
  CHECK(pipeline.shape() == ExampleShape{2, 2, 1});
  Iterator iterator(pipeline.Batch(2));
  const Batch* batch = iterator.Next();
  const std::vector<float> expected = {1, 1, 1, 1, 2, 0, 2, 0};
  CHECK(std::vector<float>(batch->inputs(), batch->inputs() + 8) == expected);
  std::vector<float> second(4);
  batch->CopyInputs(1, 1, second.data());
  CHECK(second == std::vector<float>{2, 0, 2, 0});
}

// Counts its calls, and adds 10 times the epoch.
MapFunction Counting(int* calls) {
  return [calls](const MapCall& call) {
    ++*calls;
    *call.output = *call.input + 10 * static_cast<float>(call.epoch);
  };
}

std::vector<float> ValuesOf(const Pipeline& pipeline, uint64_t epoch) {
  std::vector<float> values;
  Iterator iterator(pipeline, {epoch, 0});
  while (const Batch* batch = iterator.Next())
    values.insert(values.end(), batch->inputs(), batch->inputs() + batch->size());
  return values;
}

TEST_CASE("steps before Cache run once and steps after Cache run in every epoch") {
  int before = 0, behind = 0;
  const Pipeline pipeline =
      Numbers(3).Map(Counting(&before)).Cache().Map(Counting(&behind)).Batch(2);
  CHECK(ValuesOf(pipeline, 0) == std::vector<float>{0, 1, 2});
  CHECK(ValuesOf(pipeline, 2) == std::vector<float>{20, 21, 22});
  CHECK(before == 3);
  CHECK(behind == 6);
}

TEST_CASE("a cached order remains and a shuffle after Cache changes every epoch") {
  const Pipeline frozen = Numbers(30).Shuffle({}).Cache();
  CHECK(OrderOf(frozen, 1) == OrderOf(frozen, 0));
  CHECK(OrderOf(frozen) == OrderOf(Numbers(30).Shuffle({})));
  const Pipeline fresh = Numbers(30).Cache().Shuffle({});
  CHECK(OrderOf(fresh, 1) != OrderOf(fresh, 0));
  int calls = 0;
  const Pipeline twice =
      Numbers(4).Map(Counting(&calls)).Cache().Shuffle({}).Repeat(3).Cache().Batch(5);
  CHECK(ValuesOf(twice, 0) == ValuesOf(twice, 1));
  CHECK(calls == 4);
}

TEST_CASE("a batch has the numbers of its examples in the source") {
  const auto numbers_of = [](const Pipeline& pipeline) {
    Iterator iterator(pipeline.Batch(4));
    std::vector<uint64_t> numbers;
    while (const Batch* batch = iterator.Next())
      numbers.insert(numbers.end(), batch->numbers().begin(), batch->numbers().end());
    return numbers;
  };
  const Pipeline plain = Numbers(11).Shuffle({}).Skip(1).Shard(2, 1);
  const Ids order = OrderOf(plain);
  const std::vector<uint64_t> expected(order.begin(), order.end());
  REQUIRE(expected.size() == 5);
  CHECK(numbers_of(plain) == expected);
  CHECK(numbers_of(plain.Cache()) == expected);
  const MapFunction other = [](const MapCall& call) { *call.label = 77; };
  CHECK(numbers_of(plain.Map(other)) == expected);
  CHECK(numbers_of(plain.Map(other).Cache().Map(other)) == expected);
}

TEST_CASE("bytes become floats from 0 to 1 in inputs and in CopyInputs") {
  const Pipeline pipeline =
      Pipeline::FromMemory({2, 1, 2}, std::vector<uint8_t>{0, 51, 102, 255}, {7, 8}).Batch(2);
  CHECK(pipeline.shape() == ExampleShape{1, 2, 1});
  const std::vector<float> expected = {0, 51 / 255.0f, 102 / 255.0f, 1};
  Iterator iterator(pipeline);
  const Batch* batch = iterator.Next();
  std::vector<float> copied(2);
  batch->CopyInputs(1, 1, copied.data());
  CHECK(copied == std::vector<float>{102 / 255.0f, 1});
  CHECK(std::vector<float>(batch->inputs(), batch->inputs() + 4) == expected);
}

TEST_CASE("arrays may have any number of dimensions with channels last") {
  const auto shape_of = [](const std::vector<uint64_t>& dims) {
    uint64_t values = 1;
    for (uint64_t dim : dims) values *= dim;
    return Pipeline::FromMemory(dims, std::vector<float>(values), Ids(dims[0])).shape();
  };
  CHECK(shape_of({3}) == ExampleShape{1, 1, 1});
  CHECK(shape_of({3, 7}) == ExampleShape{1, 1, 7});
  CHECK(shape_of({3, 5, 7}) == ExampleShape{5, 7, 1});
  CHECK(shape_of({3, 5, 7, 2}) == ExampleShape{5, 7, 2});
  CHECK(shape_of({3, 4, 5, 7, 2}) == ExampleShape{20, 7, 2});
}

TEST_CASE("arrays with mismatched sizes are refused with both numbers") {
  const auto error_of = [](const std::vector<uint64_t>& dims, size_t values, size_t labels) {
    return ErrorOf([&] { Pipeline::FromMemory(dims, Floats(values), Ids(labels)); });
  };
  CHECK(error_of({3, 2}, 6, 2) == "examples of 3x2: found 2 labels, expected 3");
  CHECK(error_of({3, 2}, 5, 3) == "examples of 3x2: found 5 values, expected 6");
  CHECK(error_of({0, 2}, 0, 0) == "examples in memory: found none, expected at least 1");
  CHECK(error_of({}, 0, 0) == "examples in memory: found none, expected at least 1");
  const uint64_t most = UINT64_MAX;
  CHECK_THAT(error_of({3, most, most}, 0, 3), Catch::Contains("expected from 1 to"));
  CHECK_THAT(error_of({3, 0}, 0, 3), Catch::Contains("expected from 1 to"));
}

TEST_CASE("a step with an invalid place or argument is refused") {
  const Pipeline numbers = Numbers(5);
  const Pipeline batched = numbers.Batch(2);
  CHECK(ErrorOf([&] {
          batched.Shuffle({});
        }) == "Shuffle after Batch: expected before Batch (after 5 examples of 1x1x1, batch 2)");
  CHECK_THAT(ErrorOf([&] { batched.Batch(2); }), Catch::StartsWith("Batch after Batch"));
  CHECK_THAT(ErrorOf([&] { batched.Cache(); }), Catch::StartsWith("Cache after Batch"));
  CHECK_THAT(ErrorOf([&] { batched.Shard(2, 0); }), Catch::StartsWith("Shard after Batch"));
  CHECK_THAT(
      ErrorOf([&] { numbers.Repeat().Shuffle({}); }),
      Catch::StartsWith(
          "Shuffle of examples without end: expected a number for ShuffleOptions::buffer"));
  CHECK_THAT(
      ErrorOf([&] { numbers.Repeat().Cache(); }),
      Catch::StartsWith("Cache after Repeat without end"));
  CHECK_THAT(
      ErrorOf([&] { numbers.Shuffle({.buffer = 0}); }),
      Catch::StartsWith("Shuffle: found a buffer of 0"));
  CHECK_THAT(ErrorOf([&] { numbers.Batch(0); }), Catch::StartsWith("Batch: found 0 examples"));
  CHECK_THAT(ErrorOf([&] { numbers.Repeat(0); }), Catch::StartsWith("Repeat: found 0 times"));
  CHECK_THAT(
      ErrorOf([&] { numbers.Shard(2, 2); }),
      Catch::StartsWith("Shard: found index 2, expected below the 2 shards"));
  CHECK_THAT(ErrorOf([&] { numbers.Map(nullptr); }), Catch::StartsWith("Map: found no function"));
  CHECK_THAT(
      ErrorOf([&] {
        numbers.Map({0, 1, 1}, [](const MapCall&) {});
      }),
      Catch::StartsWith("Map to 0x1x1"));
  CHECK_THAT(ErrorOf([&] { numbers.Prefetch(2); }), Catch::StartsWith("Prefetch before Batch"));
  CHECK_THAT(
      ErrorOf([&] { batched.Prefetch(1).Take(1); }), Catch::StartsWith("a step after Prefetch"));
  CHECK_THAT(
      ErrorOf([&] { Iterator iterator(numbers); }),
      Catch::Contains("found no Batch, expected one"));
  CHECK_THAT(
      ErrorOf([&] { Iterator iterator(numbers.Batch(6, Remainder::kDrop)); }),
      Catch::Contains("found no batch in an epoch"));
  CHECK_THAT(
      ErrorOf([&] { Iterator iterator(numbers.Skip(5).Batch(2)); }),
      Catch::Contains("found no batch in an epoch"));
}

TEST_CASE("a pipeline describes its steps") {
  const Pipeline pipeline = Numbers(10)
                                .Shuffle({.buffer = 4, .seed = 9, .reshuffle_each_epoch = false})
                                .Take(8)
                                .Skip(1)
                                .Shard(2, 1)
                                .Map({1, 2, 1}, [](const MapCall&) {})
                                .Cache()
                                .Repeat()
                                .Batch(2, Remainder::kDrop)
                                .Prefetch(3);
  CHECK(
      pipeline.description() ==
      "10 examples of 1x1x1, shuffle buffer 4 seed 9 once, take 8, skip 1, shard 1 of 2, map to "
      "1x2x1, cache, repeat without end, batch 2 without remainder, prefetch 3");
}

// Pipelines with both kinds of shuffle, Repeat before and after Batch, a cache and a map that uses
// the epoch.
std::vector<Pipeline> Resumable() {
  const auto random = [](const MapCall& call) {
    *call.output = *call.input;
    *call.label += 1000 * static_cast<int32_t>(call.epoch % 50);
  };
  return {
      Numbers(23).Batch(4), Numbers(23).Shuffle({}).Map(random).Batch(4, Remainder::kDrop),
      Numbers(23).Shuffle({.buffer = 5}).Shard(2, 1).Batch(3).Repeat(2),
      Numbers(23).Shuffle({}).Cache().Shuffle({.buffer = 7}).Repeat(2).Skip(3).Batch(4).Skip(1),
      Numbers(23).Repeat(2).Shuffle({.buffer = 9}).Map(random).Take(40).Batch(4).Take(9)};
}

TEST_CASE("an iterator resumed at any position continues like one that never stopped") {
  for (const Pipeline& plain : Resumable()) {
    for (const Pipeline& pipeline : {plain, plain.Prefetch(2)}) {
      INFO(pipeline.description());
      for (uint64_t epoch : {0, 1}) {
        const std::vector<Ids> whole = BatchesOf(pipeline, epoch);
        CHECK(whole == BatchesOf(plain, epoch));
        REQUIRE(whole.size() == pipeline.batches());
        Iterator seeking(pipeline);
        seeking.Next();
        for (uint64_t batch = 0; batch <= whole.size(); ++batch) {
          const std::vector<Ids> rest(whole.begin() + static_cast<ptrdiff_t>(batch), whole.end());
          Iterator resumed(pipeline, {epoch, batch});
          CHECK(RestOfEpoch(resumed) == rest);
          CHECK(resumed.position() == Position{epoch + 1, 0});
          seeking.Seek({epoch, batch});
          CHECK(RestOfEpoch(seeking) == rest);
        }
      }
    }
  }
}

TEST_CASE("an endless epoch resumes at once at any position") {
  Iterator iterator(Numbers(10).Shuffle({}).Repeat().Batch(4), {0, 1000000});
  Iterator other(Numbers(10).Shuffle({}).Repeat().Batch(4), {0, 999995});
  for (int i = 0; i < 5; ++i) other.Next();
  CHECK(LabelsOf(*iterator.Next()) == LabelsOf(*other.Next()));
}

}  // namespace
}  // namespace dtrun::models

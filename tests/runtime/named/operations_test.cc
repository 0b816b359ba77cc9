// The results of named operations.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "ops/reduce/reduce.h"
#include "tests/runtime/named/named_ranks.h"

namespace dtrun::testing {
namespace {

using base::Text;

// Cubes of 17 in one, two and three dimensions, and an empty shape.
const std::vector<std::vector<uint64_t>> kShapes = {{17}, {17, 17}, {17, 17, 17}, {0, 3}};

uint64_t CountOf(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t dimension : shape) count *= dimension;
  return count;
}

// Small integers, which depend only on the seed. All sums and products in the tests are exact.
template <typename T>
std::vector<T> Numbers(uint64_t count, unsigned seed, int least = -4, int most = 4) {
  std::mt19937 random(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    const int number = static_cast<int>(random() % static_cast<unsigned>(most - least + 1)) + least;
    value = static_cast<T>(std::is_signed_v<T> ? number : number - least);
  }
  return values;
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return static_cast<T>(a + b);
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kProduct: return static_cast<T>(a * b);
    case ReduceOp::kAdasum: break;  // see adasum_test.cc
  }
  return a;
}

template <typename T>
std::vector<T> Reduced(const std::vector<std::vector<T>>& inputs, ReduceOp op) {
  std::vector<T> result = inputs[0];
  for (size_t r = 1; r < inputs.size(); ++r) {
    for (size_t i = 0; i < result.size(); ++i) result[i] = Combine(op, result[i], inputs[r][i]);
  }
  if (op != ReduceOp::kAverage) return result;
  for (T& value : result) {
    value = std::is_floating_point_v<T>
                ? static_cast<T>(value * (T(1) / static_cast<T>(inputs.size())))
                : static_cast<T>(value / static_cast<T>(inputs.size()));
  }
  return result;
}

TEST_CASE("tensors submitted in different orders are reduced by name") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool thread = GENERATE(false, true);
  CHECK(
      RunNamed(
          size,
          [](NamedRank& r) {
            constexpr int kTensors = 20;
            for (int step = 0; step < 3; ++step) {
              std::vector<std::vector<float>> values;
              std::vector<NamedWork> works;
              const auto name_of = [&r](int i) { return (i * 7 + r.rank * 3) % kTensors; };
              for (int i = 0; i < kTensors; ++i)
                values.push_back(
                    std::vector<float>(17, static_cast<float>(name_of(i) + r.rank + step)));
              for (int i = 0; i < kTensors; ++i)
                works.push_back(
                    r.AllReduce(Text("tensor ", name_of(i)), values[static_cast<size_t>(i)]));
              for (int i = 0; i < kTensors; ++i) {
                works[static_cast<size_t>(i)].Wait();
                const int sum = r.size * (name_of(i) + step) + r.size * (r.size - 1) / 2;
                ExpectEqual(
                    values[static_cast<size_t>(i)], std::vector<float>(17, static_cast<float>(sum)),
                    Text("tensor ", name_of(i)));
              }
            }
          },
          {.engine_thread = thread}) == Nothing(size));
}

template <typename T>
void ReduceEverything(NamedRank& r) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    std::vector<std::vector<T>> all, outputs;
    std::vector<NamedWork> works;
    // All operations are in flight at once, each shape in place and with a separate output.
    for (size_t s = 0; s < kShapes.size(); ++s) {
      for (int rank = 0; rank < r.size; ++rank)
        all.push_back(Numbers<T>(
            CountOf(kShapes[s]), static_cast<unsigned>(100 * s + static_cast<size_t>(rank))));
    }
    const auto mine = [&](size_t s) -> std::vector<T>& {
      return all[s * static_cast<size_t>(r.size) + static_cast<size_t>(r.rank)];
    };
    outputs.resize(kShapes.size());
    for (size_t s = 0; s < kShapes.size(); ++s) {
      outputs[s] = mine(s);
      works.push_back(r.Submit(
          Kind::kAllReduce, Text("in place ", s), Buffer(outputs[s].data(), outputs[s].size()),
          kShapes[s], {.op = op}));
    }
    std::vector<std::vector<T>> beside(kShapes.size());
    for (size_t s = 0; s < kShapes.size(); ++s) {
      beside[s].resize(mine(s).size());
      NamedTensor tensor{.name = "", .input = Buffer(mine(s).data(), mine(s).size())};
      const std::string name = Text("beside ", s);
      tensor.name = name;
      tensor.output = Buffer(beside[s].data(), beside[s].size());
      tensor.shape = kShapes[s];
      works.push_back(r.queue.Submit({.op = op}, {tensor}));
    }
    for (NamedWork& work : works) work.Wait();
    for (size_t s = 0; s < kShapes.size(); ++s) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(s) * r.size;
      const std::vector<T> expected =
          Reduced(std::vector<std::vector<T>>(first, first + r.size), op);
      ExpectEqual(outputs[s], expected, Text(NameOf(op), " in place, shape ", s));
      ExpectEqual(beside[s], expected, Text(NameOf(op), " beside, shape ", s));
      const std::vector<T> before = Numbers<T>(
          CountOf(kShapes[s]), static_cast<unsigned>(100 * s + static_cast<size_t>(r.rank)));
      ExpectEqual(mine(s), before, "an input that is not in place");
    }
  }
}

TEST_CASE("all_reduce gives the right result for every type and reduce op") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          ReduceEverything<uint8_t>(r);
          ReduceEverything<int8_t>(r);
          ReduceEverything<uint16_t>(r);
          ReduceEverything<int16_t>(r);
          ReduceEverything<uint32_t>(r);
          ReduceEverything<int32_t>(r);
          ReduceEverything<uint64_t>(r);
          ReduceEverything<int64_t>(r);
          ReduceEverything<float>(r);
          ReduceEverything<double>(r);
        }) == Nothing(size));
}

TEST_CASE("all_reduce gives the right result for 16-bit floats and bools") {
  const int size = GENERATE(2, 3);
  CHECK(RunNamed(size, [](NamedRank& r) {
          for (const DType dtype : {DType::kF16, DType::kBF16}) {
            std::vector<float> numbers(33, static_cast<float>(r.rank + 1));
            std::vector<uint16_t> halves(33);
            ops::Convert(numbers.data(), DType::kF32, halves.data(), dtype, 33);
            r.Submit(Kind::kAllReduce, "half", Buffer(halves.data(), 33, dtype), {33}).Wait();
            ops::Convert(halves.data(), dtype, numbers.data(), DType::kF32, 33);
            const auto sum = static_cast<float>(r.size * (r.size + 1) / 2);
            ExpectEqual(numbers, std::vector<float>(33, sum), NameOf(dtype));
          }
          std::vector<uint8_t> bools = {r.rank == 0, 1, 0};
          r.Submit(Kind::kAllReduce, "or", Buffer(bools.data(), 3, DType::kBool), {3}).Wait();
          ExpectEqual(bools, {1, 1, 0}, "or");
          bools = {r.rank == 0, 1, 0};
          r.Submit(
               Kind::kAllReduce, "and", Buffer(bools.data(), 3, DType::kBool), {3},
               {.op = ReduceOp::kProduct})
              .Wait();
          ExpectEqual(bools, {0, 1, 0}, "and");
        }) == Nothing(size));
}

TEST_CASE("integers are scaled in f64 and truncated before and after the reduction") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          const double factor = 0.7314;
          std::vector<int32_t> before = {-99, -1, 0, 1, 50, 99}, after = before;
          const std::vector<int32_t> x = before;
          std::vector<float> floats(before.begin(), before.end());
          std::vector<NamedWork> works;
          works.push_back(r.AllReduce("before", before, ReduceOp::kSum, {factor, 1}));
          works.push_back(r.AllReduce("after", after, ReduceOp::kSum, {1, factor}));
          works.push_back(r.AllReduce("floats", floats, ReduceOp::kSum, {0.5, 4}));
          for (NamedWork& work : works) work.Wait();
          std::vector<int32_t> expected_before, expected_after;
          std::vector<float> expected_floats;
          for (const int32_t value : x) {
            expected_before.push_back(static_cast<int32_t>(factor * value) * 2);
            expected_after.push_back(static_cast<int32_t>(2 * value * factor));
            expected_floats.push_back(4.0f * static_cast<float>(value));
          }
          ExpectEqual(before, expected_before, "before");
          ExpectEqual(after, expected_after, "after");
          ExpectEqual(floats, expected_floats, "floats");
        }) == Nothing(2));
}

// All ranks submit the same numbers, which are scaled before or after the sum.
template <typename T>
void ScaleNumbers(NamedRank& r, double factor) {
  const auto p = static_cast<uint64_t>(r.size), own = static_cast<uint64_t>(r.rank);
  const std::vector<uint64_t> shape = {4 * p + 1, 3};
  const std::vector<T> x = Numbers<T>(CountOf(shape), 1234, -25, 25);
  std::vector<T> before = x, after = x, rows_before = x, rows_after = x;
  std::vector<T> expected_before, expected_after;
  const T ranks = static_cast<T>(r.size);
  for (const T value : x) {
    if constexpr (std::is_floating_point_v<T>) {
      expected_before.push_back(ranks * (static_cast<T>(factor) * value));
      expected_after.push_back(static_cast<T>(factor) * (ranks * value));
    } else {
      const auto scaled = static_cast<T>(factor * static_cast<double>(value));
      expected_before.push_back(static_cast<T>(scaled * ranks));
      const auto sum = static_cast<T>(value * ranks);
      expected_after.push_back(static_cast<T>(factor * static_cast<double>(sum)));
    }
  }
  const auto submit = [&](Kind kind, const char* name, std::vector<T>& values, Scale scale) {
    return r.Submit(kind, name, Buffer(values.data(), values.size()), shape, {.scale = scale});
  };
  NamedWork one = submit(Kind::kAllReduce, "before", before, {factor, 1});
  NamedWork two = submit(Kind::kAllReduce, "after", after, {1, factor});
  NamedWork three = submit(Kind::kReduceScatter, "rows before", rows_before, {factor, 1});
  NamedWork four = submit(Kind::kReduceScatter, "rows after", rows_after, {1, factor});
  one.Wait(), two.Wait(), three.Wait(), four.Wait();
  const std::string type = NameOf(Buffer(before.data(), 1).dtype);
  ExpectEqual(before, expected_before, Text("all_reduce of ", type, ", before"));
  ExpectEqual(after, expected_after, Text("all_reduce of ", type, ", after"));
  // The first rank gets the remaining row.
  const uint64_t first = 3 * (4 * own + std::min<uint64_t>(own, 1)), mine = own == 0 ? 15 : 12;
  const auto share = [&](const std::vector<T>& all) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    return std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(mine));
  };
  ExpectEqual(
      ResultOf<T>(three), share(expected_before), Text("reduce_scatter of ", type, ", before"));
  ExpectEqual(
      ResultOf<T>(four), share(expected_after), Text("reduce_scatter of ", type, ", after"));
}

// 16-bit floats are scaled in f32 and rounded once.
void ScaleHalves(NamedRank& r, DType dtype, double factor) {
  const std::vector<float> x = Numbers<float>(33, 1234, -25, 25);
  std::vector<uint16_t> before(33), after(33), expected(33);
  ops::Convert(x.data(), DType::kF32, before.data(), dtype, 33);
  after = before;
  const auto submit = [&](const char* name, std::vector<uint16_t>& values, Scale scale) {
    return r.Submit(
        Kind::kAllReduce, name, Buffer(values.data(), 33, dtype), {33}, {.scale = scale});
  };
  NamedWork one = submit("before", before, {factor, 1}), two = submit("after", after, {1, factor});
  one.Wait(), two.Wait();
  const auto f = static_cast<float>(factor), ranks = static_cast<float>(r.size);
  std::vector<float> numbers = x;
  for (float& value : numbers) value = ranks * (f * value);
  ops::Convert(numbers.data(), DType::kF32, expected.data(), dtype, 33);
  ExpectEqual(before, expected, Text(NameOf(dtype), ", before"));
  numbers = x;
  for (float& value : numbers) value = f * (ranks * value);
  ops::Convert(numbers.data(), DType::kF32, expected.data(), dtype, 33);
  ExpectEqual(after, expected, Text(NameOf(dtype), ", after"));
}

TEST_CASE("tensors of every type are scaled in all_reduce and reduce_scatter") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          for (const double factor : {0.1915194503788923, 0.6221087710398319, 0.4377277390071145}) {
            ScaleNumbers<uint8_t>(r, factor);
            ScaleNumbers<int8_t>(r, factor);
            ScaleNumbers<uint16_t>(r, factor);
            ScaleNumbers<int16_t>(r, factor);
            ScaleNumbers<uint32_t>(r, factor);
            ScaleNumbers<int32_t>(r, factor);
            ScaleNumbers<uint64_t>(r, factor);
            ScaleNumbers<int64_t>(r, factor);
            ScaleNumbers<float>(r, factor);
            ScaleNumbers<double>(r, factor);
            ScaleHalves(r, DType::kF16, factor);
            ScaleHalves(r, DType::kBF16, factor);
          }
        }) == Nothing(size));
}

std::vector<uint8_t> BytesOf(const NamedWork& work) {
  const Buffer& result = work.result(0).result;
  const auto* first = static_cast<const uint8_t*>(result.data);
  return std::vector<uint8_t>(first, first + result.bytes());
}

TEST_CASE("operations that only move data take every type and one to three dimensions") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const auto p = static_cast<uint64_t>(r.size), own = static_cast<uint64_t>(r.rank);
          const int root = r.size - 1;
          std::vector<uint64_t> from_1_to_p;
          for (uint64_t s = 1; s <= p; ++s) from_1_to_p.push_back(s);
          // Adds elements with `number` in every byte.
          const auto add = [](std::vector<uint8_t>& bytes, uint64_t elements, DType dtype,
                              uint64_t number) {
            bytes.insert(bytes.end(), elements * SizeOf(dtype), static_cast<uint8_t>(number));
          };
          for (const DType dtype :
               {DType::kU8, DType::kI8, DType::kU16, DType::kI16, DType::kU32, DType::kI32,
                DType::kU64, DType::kI64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64,
                DType::kBool}) {
            for (size_t dimensions = 1; dimensions <= 3; ++dimensions) {
              const std::string what = Text(NameOf(dtype), ", ", dimensions, " dimensions: ");
              std::vector<uint64_t> shape(dimensions, 17), dealt(dimensions, 2);
              dealt[0] = p * (own + 1);
              const uint64_t count = CountOf(shape), row = CountOf(dealt) / dealt[0];
              std::vector<uint8_t> gathered, spread, sent;
              add(gathered, count, dtype, own);
              add(spread, count, dtype, own);
              for (uint64_t to = 0; to < p; ++to) add(sent, (own + 1) * row, dtype, to);
              NamedTensor tensor{
                  .name = "sent", .input = Buffer(sent.data(), p * (own + 1) * row, dtype)};
              tensor.shape = dealt;
              tensor.splits.assign(p, own + 1);
              tensor.has_splits = true;
              NamedWork one = r.Submit(
                  Kind::kAllGather, "gathered", Buffer(gathered.data(), count, dtype), shape);
              NamedWork two = r.Submit(
                  Kind::kBroadcast, "spread", Buffer(spread.data(), count, dtype), shape,
                  {.root = root});
              NamedWork three = r.queue.Submit({.kind = Kind::kAllToAll}, {tensor});
              one.Wait(), two.Wait(), three.Wait();
              std::vector<uint8_t> expected;
              for (uint64_t s = 0; s < p; ++s) add(expected, count, dtype, s);
              ExpectEqual(BytesOf(one), expected, what + "all_gather");
              shape[0] = 17 * p;
              ExpectEqual(ShapeOf(one.result(0)), shape, what + "the shape of the all_gather");
              expected.clear();
              add(expected, count, dtype, p - 1);
              ExpectEqual(spread, expected, what + "broadcast");
              expected.clear();
              add(expected, p * (p + 1) / 2 * row, dtype, own);
              ExpectEqual(BytesOf(three), expected, what + "all_to_all");
              dealt[0] = p * (p + 1) / 2;
              ExpectEqual(ShapeOf(three.result(0)), dealt, what + "the shape of the all_to_all");
              ExpectEqual(three.result(0).received_splits, from_1_to_p, what + "received splits");
            }
          }
        }) == Nothing(size));
}

TEST_CASE("all_gather joins the rows of all ranks with different row counts") {
  const int size = GENERATE(1, 2, 3, 4);
  const uint64_t batch_bytes = GENERATE(0, 4 << 20);  // 0: one tensor per batch
  CHECK(
      RunNamed(
          size,
          [](NamedRank& r) {
            const std::vector<uint64_t> rows = {17, 32, 81, 12};
            std::vector<std::vector<int32_t>> inputs;
            std::vector<NamedWork> works;
            std::vector<std::string> names;
            const auto own = static_cast<size_t>(r.rank);
            for (uint64_t columns = 1; columns <= 5; ++columns) {
              inputs.push_back(std::vector<int32_t>(rows[own] * columns, r.rank));
              works.push_back(r.Submit(
                  Kind::kAllGather, Text("g", columns),
                  Buffer(inputs.back().data(), inputs.back().size()), {rows[own], columns}));
            }
            double scalar_like = r.rank + 0.5;  // another type, with one row
            works.push_back(r.Submit(Kind::kAllGather, "f64", Buffer(&scalar_like, 1), {1}));
            for (uint64_t columns = 1; columns <= 5; ++columns) {
              NamedWork& work = works[columns - 1];
              work.Wait();
              std::vector<int32_t> expected;
              uint64_t all_rows = 0;
              for (int source = 0; source < r.size; ++source) {
                expected.insert(
                    expected.end(), rows[static_cast<size_t>(source)] * columns, source);
                all_rows += rows[static_cast<size_t>(source)];
              }
              ExpectEqual(ResultOf<int32_t>(work), expected, Text(columns, " columns"));
              ExpectEqual(ShapeOf(work.result(0)), {all_rows, columns}, "the shape");
            }
            works.back().Wait();
            std::vector<double> expected;
            for (int source = 0; source < r.size; ++source) expected.push_back(source + 0.5);
            ExpectEqual(ResultOf<double>(works.back()), expected, "f64");
          },
          {.settings = {.batch_bytes = batch_bytes}}) == Nothing(size));
}

TEST_CASE("broadcast works from every root in place and with a separate output") {
  const int size = GENERATE(1, 2, 3);
  CHECK(RunNamed(size, [](NamedRank& r) {
          for (int root = 0; root < r.size; ++root) {
            std::vector<float> in_place(289, static_cast<float>(r.rank));
            std::vector<uint8_t> bytes(3, static_cast<uint8_t>(r.rank));
            std::vector<float> input = in_place, output(289, -1.0f);
            NamedTensor beside{.name = "beside", .input = Buffer(input.data(), 289)};
            beside.output = Buffer(output.data(), 289);
            beside.shape = {17, 17};
            const Operation operation{.kind = Kind::kBroadcast, .root = root};
            NamedWork one = r.Submit(
                Kind::kBroadcast, "in place", Buffer(in_place.data(), 289), {17, 17}, operation);
            NamedWork two = r.queue.Submit(operation, {beside});
            NamedWork three =
                r.Submit(Kind::kBroadcast, "bytes", Buffer(bytes.data(), 3), {3}, operation);
            one.Wait(), two.Wait(), three.Wait();
            ExpectEqual(in_place, std::vector<float>(289, static_cast<float>(root)), "in place");
            ExpectEqual(output, std::vector<float>(289, static_cast<float>(root)), "beside");
            ExpectEqual(input, std::vector<float>(289, static_cast<float>(r.rank)), "the input");
            ExpectEqual(bytes, std::vector<uint8_t>(3, static_cast<uint8_t>(root)), "bytes");
          }
        }) == Nothing(size));
}

TEST_CASE("all_to_all moves rows by splits or dealt evenly or no rows") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const auto p = static_cast<uint64_t>(r.size), own = static_cast<uint64_t>(r.rank);
          // Rank r sends r + 1 rows of two elements to each rank.
          std::vector<int64_t> uneven, even, none;
          for (uint64_t d = 0; d < p; ++d)
            uneven.insert(uneven.end(), 2 * (own + 1), static_cast<int64_t>(d));
          uneven.insert(uneven.end(), 2 * own, -1);  // rows behind the splits stay
          for (uint64_t d = 0; d < p; ++d)
            even.insert(even.end(), 3, static_cast<int64_t>(10 * own + d));
          NamedTensor tensor{.name = "uneven", .input = Buffer(uneven.data(), uneven.size())};
          tensor.shape = {p * (own + 1) + own, 2};
          tensor.splits.assign(p, own + 1);
          tensor.has_splits = true;
          NamedWork one = r.queue.Submit({.kind = Kind::kAllToAll}, {tensor});
          NamedWork two =
              r.Submit(Kind::kAllToAll, "even", Buffer(even.data(), even.size()), {p * 3});
          NamedWork three = r.Submit(Kind::kAllToAll, "none", Buffer(none.data(), 0), {0, 5});
          one.Wait(), two.Wait(), three.Wait();
          ExpectEqual(
              ResultOf<int64_t>(one), std::vector<int64_t>(p * (p + 1), r.rank), "rows by splits");
          ExpectEqual(ShapeOf(one.result(0)), {p * (p + 1) / 2, 2}, "the shape");
          std::vector<uint64_t> from_1_to_p, threes(p, 3);
          for (uint64_t s = 1; s <= p; ++s) from_1_to_p.push_back(s);
          ExpectEqual(one.result(0).received_splits, from_1_to_p, "received splits");
          std::vector<int64_t> dealt;
          for (int64_t s = 0; s < r.size; ++s) dealt.insert(dealt.end(), 3, 10 * s + r.rank);
          ExpectEqual(ResultOf<int64_t>(two), dealt, "rows dealt evenly");
          ExpectEqual(two.result(0).received_splits, threes, "received splits of the even one");
          Expect(three.result(0).result.count == 0, "an empty result of empty inputs");
        }) == Nothing(size));
}

TEST_CASE("reduce_scatter deals the rows and the first ranks get one more") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const auto p = static_cast<uint64_t>(r.size), own = static_cast<uint64_t>(r.rank);
          const uint64_t rows = 4 * p + p / 2;
          std::vector<NamedWork> works;
          std::vector<std::vector<int32_t>> inputs;
          for (int tensor = 0; tensor < 5; ++tensor) {
            inputs.emplace_back();
            for (uint64_t i = 0; i < rows * 3; ++i)
              inputs.back().push_back(static_cast<int32_t>(i) * (tensor + 1));
          }
          const auto submit = [&](size_t i, const Operation& operation) {
            works.push_back(r.Submit(
                Kind::kReduceScatter, Text("rs", i), Buffer(inputs[i].data(), inputs[i].size()),
                {rows, 3}, operation));
          };
          for (size_t i = 0; i < 3; ++i) submit(i, {});
          submit(3, {.op = ReduceOp::kAverage});
          submit(4, {.scale = {2, 0.5}});
          const uint64_t first = own * 4 + std::min(own, p / 2), mine = own < p / 2 ? 5 : 4;
          for (size_t i = 0; i < 5; ++i) {
            works[i].Wait();
            const int factor = i == 3 ? 1 : r.size;
            std::vector<int32_t> expected;
            for (uint64_t e = 3 * first; e < 3 * (first + mine); ++e)
              expected.push_back(static_cast<int32_t>(e) * static_cast<int32_t>(i + 1) * factor);
            ExpectEqual(ResultOf<int32_t>(works[i]), expected, Text("tensor ", i));
            ExpectEqual(ShapeOf(works[i].result(0)), {mine, 3}, Text("shape of tensor ", i));
          }
          // Into an output of the caller.
          std::vector<int32_t> output(3 * mine);
          NamedTensor tensor{
              .name = "own memory", .input = Buffer(inputs[0].data(), inputs[0].size())};
          tensor.output = Buffer(output.data(), output.size());
          tensor.shape = {rows, 3};
          NamedWork work = r.queue.Submit({.kind = Kind::kReduceScatter}, {tensor});
          work.Wait();
          ExpectEqual(output, ResultOf<int32_t>(works[0]), "own memory");
        }) == Nothing(size));
}

template <typename T>
void DealNumbers(NamedRank& r, const std::vector<uint64_t>& shape) {
  const auto p = static_cast<uint64_t>(r.size), own = static_cast<uint64_t>(r.rank);
  std::vector<T> x = Numbers<T>(CountOf(shape), 1234);
  const uint64_t row = CountOf(shape) / shape[0], each = shape[0] / p, more = shape[0] % p;
  const uint64_t first = (own * each + std::min(own, more)) * row;
  const uint64_t count = (each + (own < more ? 1 : 0)) * row;
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    NamedWork work =
        r.Submit(Kind::kReduceScatter, "x", Buffer(x.data(), x.size()), shape, {.op = op});
    work.Wait();
    const std::vector<T> all = Reduced(std::vector<std::vector<T>>(p, x), op);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    ExpectEqual(
        ResultOf<T>(work), std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(count)),
        Text(
            NameOf(op), " of ", NameOf(Buffer(x.data(), 1).dtype), ", ", shape.size(),
            " dimensions"));
  }
}

TEST_CASE("reduce_scatter gives the right result for every type and reduce op and row count") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const uint64_t rows = 4 * static_cast<uint64_t>(r.size);
          for (const std::vector<uint64_t>& shape :
               {std::vector<uint64_t>{rows}, std::vector<uint64_t>{rows, rows},
                std::vector<uint64_t>{rows, rows, rows},
                std::vector<uint64_t>{rows + static_cast<uint64_t>(r.size) / 2}}) {
            DealNumbers<uint8_t>(r, shape);
            DealNumbers<int8_t>(r, shape);
            DealNumbers<uint16_t>(r, shape);
            DealNumbers<int16_t>(r, shape);
            DealNumbers<uint32_t>(r, shape);
            DealNumbers<int32_t>(r, shape);
            DealNumbers<uint64_t>(r, shape);
            DealNumbers<int64_t>(r, shape);
            DealNumbers<float>(r, shape);
            DealNumbers<double>(r, shape);
          }
        }) == Nothing(size));
}

TEST_CASE("tensors larger than a batch and batches of small tensors are both reduced") {
  const int size = GENERATE(2, 3);
  CHECK(
      RunNamed(
          size,
          [](NamedRank& r) {
            std::vector<std::vector<float>> values;
            std::vector<NamedWork> works;
            for (size_t i = 0; i < 40; ++i)
              values.push_back(
                  std::vector<float>(i % 7 == 0 ? 5000 : 100 * i, static_cast<float>(i)));
            for (size_t i = 0; i < 40; ++i) works.push_back(r.AllReduce(Text(i), values[i]));
            for (NamedWork& work : works) work.Wait();
            for (size_t i = 0; i < 40; ++i) {
              ExpectEqual(
                  values[i],
                  std::vector<float>(
                      values[i].size(), static_cast<float>(i) * static_cast<float>(r.size)),
                  Text("tensor ", i));
            }
          },
          {.settings = {.batch_bytes = 16384}}) == Nothing(size));
}

TEST_CASE("a group may have tensors of different types in different orders on the ranks") {
  CHECK(
      RunNamed(
          3,
          [](NamedRank& r) {
            std::vector<float> floats(17, 1);
            std::vector<double> doubles(4, 2);
            std::vector<int32_t> integers(300000, 3);  // larger than a batch, so slower
            const auto tensor = [](const char* name, Buffer buffer) {
              NamedTensor named{.name = name, .input = buffer};
              named.shape = {buffer.count};
              return named;
            };
            std::vector<NamedTensor> group = {
                tensor("a", Buffer(floats.data(), 17)), tensor("b", Buffer(doubles.data(), 4)),
                tensor("c", Buffer(integers.data(), 300000))};
            // The order of the tensors differs between ranks.
            std::rotate(group.begin(), group.begin() + r.rank, group.end());
            for (int step = 0; step < 3; ++step) {
              NamedWork work = r.queue.Submit({}, group);
              work.Wait();
            }
            ExpectEqual(floats, std::vector<float>(17, 27), "floats");
            ExpectEqual(doubles, std::vector<double>(4, 54), "doubles");
            ExpectEqual(integers, std::vector<int32_t>(300000, 81), "integers");
          },
          {.settings = {.batch_bytes = 1 << 20}}) == Nothing(3));
}

TEST_CASE("a group works for every operation") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const auto p = static_cast<size_t>(r.size);
          std::vector<std::string> names;
          for (size_t i = 0; i < 5; ++i) names.push_back(Text("tensor ", i));
          for (const Kind kind :
               {Kind::kAllReduce, Kind::kAllGather, Kind::kBroadcast, Kind::kAllToAll,
                Kind::kReduceScatter}) {
            // Tensor i has p (i + 1) rows. On rank r, each value is r + i.
            std::vector<std::vector<int32_t>> values;
            for (size_t i = 0; i < 5; ++i)
              values.emplace_back(p * (i + 1), r.rank + static_cast<int32_t>(i));
            std::vector<NamedTensor> group;
            for (size_t i = 0; i < 5; ++i) {
              group.push_back({.name = names[i], .input = Buffer(values[i].data(), p * (i + 1))});
              group.back().shape = {p * (i + 1)};
            }
            NamedWork work = r.queue.Submit({.kind = kind, .root = r.size - 1}, group);
            work.Wait();
            for (size_t i = 0; i < 5; ++i) {
              const auto number = static_cast<int32_t>(i);
              const int32_t sum = r.size * (r.size - 1) / 2 + r.size * number;
              std::vector<int32_t> expected;
              if (kind == Kind::kAllReduce) expected.assign(p * (i + 1), sum);
              if (kind == Kind::kBroadcast) expected.assign(p * (i + 1), r.size - 1 + number);
              if (kind == Kind::kReduceScatter) expected.assign(i + 1, sum);
              for (int32_t s = 0; s < r.size; ++s) {
                if (kind == Kind::kAllGather)
                  expected.insert(expected.end(), p * (i + 1), s + number);
                if (kind == Kind::kAllToAll) expected.insert(expected.end(), i + 1, s + number);
              }
              ExpectEqual(ResultOf<int32_t>(work, i), expected, Text(NameOf(kind), ", ", names[i]));
            }
          }
        }) == Nothing(size));
}

TEST_CASE("a callback runs once with the results and may submit") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> first = {1}, second = {10};
          std::atomic<int> called{0};
          std::optional<NamedWork> next;
          NamedTensor tensor{.name = "first", .input = Buffer(first.data(), 1)};
          tensor.shape = {1};
          NamedWork work = r.queue.Submit({}, {tensor}, [&](const auto& submission) {
            if (submission->error == nullptr && first[0] == 2) ++called;
            next = r.AllReduce("second", second);
          });
          r.engine.WaitUntil([&] { return called.load() == 1 && next.has_value(); });
          next->Wait();
          work.Wait();
          ExpectEqual(second, {20}, "what the callback submitted");
          Expect(called.load() == 1, "called once");
        }) == Nothing(2));
}

TEST_CASE("a tensor is not done before all ranks have submitted it") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> value = {1};
          if (r.rank == 0) {
            NamedWork work = r.AllReduce("x", value);
            for (int i = 0; i < 100; ++i)
              Expect(!work.Test(), "not done before rank 1 has submitted it");
            r.world.Barrier();
            work.Wait();
          } else {
            r.world.Barrier();
            r.AllReduce("x", value).Wait();
          }
          ExpectEqual(value, {2}, "x");
        }) == Nothing(2));
}

// Rank 0 waits in a barrier outside of the queue. Its submission is done in this wait.
TEST_CASE("a wait outside of the queue also drives the queue") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> value = {1};
          NamedWork work = r.AllReduce("x", value);
          if (r.rank == 1) work.Wait();
          r.world.Barrier();
          work.Wait();
          ExpectEqual(value, {2}, "x");
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing

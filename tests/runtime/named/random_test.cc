// Ranks submit the same random tensors and operations over many rounds. Each rank has its own
// order. Some rounds have faults.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "tests/runtime/named/named_ranks.h"

namespace dtrun::testing {
namespace {

using base::Text;
using runtime::named::Part;

constexpr int kRanks = 4, kRandomTensors = 200;

// One tensor of a round. All its properties and the values of all ranks follow from a number.
struct Story {
  unsigned seed;
  Kind kind;
  DType dtype;
  ReduceOp op;
  int root;
  uint64_t columns;

  explicit Story(unsigned number) {
    std::mt19937 random(number);
    seed = static_cast<unsigned>(random());
    const Kind kinds[] = {
        Kind::kAllReduce, Kind::kAllGather, Kind::kBroadcast, Kind::kAllToAll,
        Kind::kReduceScatter};
    const DType dtypes[] = {DType::kI32, DType::kF32, DType::kI64, DType::kF64};
    const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
    kind = kinds[random() % 5];
    dtype = dtypes[random() % 4];
    op = ops[random() % 4];
    root = static_cast<int>(random() % kRanks);
    columns = 1 + random() % 5;
  }

  uint64_t Split(int from, int to) const {
    return (seed + 3 * static_cast<unsigned>(from) + static_cast<unsigned>(to)) % 3;
  }
  uint64_t Rows(int rank) const {
    if (kind == Kind::kAllGather) return (seed + static_cast<unsigned>(rank)) % 4;
    if (kind != Kind::kAllToAll) return seed % 9;
    uint64_t rows = 0;
    for (int to = 0; to < kRanks; ++to) rows += Split(rank, to);
    return rows;
  }
  double Value(int rank, uint64_t row, uint64_t column) const {
    return static_cast<double>((seed + 7 * static_cast<unsigned>(rank) + 13 * row + column) % 9) -
           4;
  }
  double Combined(uint64_t row, uint64_t column) const {
    double result = Value(0, row, column);
    for (int r = 1; r < kRanks; ++r) {
      const double value = Value(r, row, column);
      switch (op) {
        case ReduceOp::kMin: result = std::min(result, value); break;
        case ReduceOp::kMax: result = std::max(result, value); break;
        case ReduceOp::kProduct: result *= value; break;
        case ReduceOp::kSum:
        case ReduceOp::kAverage: result += value; break;
        case ReduceOp::kAdasum: break;  // never drawn; see adasum_test.cc
      }
    }
    return result;
  }

  std::vector<double> Result(int rank) const {
    std::vector<double> result;
    const auto add = [&](const auto& value, uint64_t first, uint64_t rows) {
      for (uint64_t row = first; row < first + rows; ++row) {
        for (uint64_t column = 0; column < columns; ++column) result.push_back(value(row, column));
      }
    };
    const auto of = [this](int source) {
      return [this, source](uint64_t row, uint64_t column) { return Value(source, row, column); };
    };
    const auto combined = [this](uint64_t row, uint64_t column) { return Combined(row, column); };
    const uint64_t rows = Rows(rank);
    switch (kind) {
      case Kind::kAllReduce: add(combined, 0, rows); break;
      case Kind::kBroadcast: add(of(root), 0, rows); break;
      case Kind::kAllGather:
        for (int source = 0; source < kRanks; ++source) add(of(source), 0, Rows(source));
        break;
      case Kind::kAllToAll:
        for (int source = 0; source < kRanks; ++source) {
          uint64_t first = 0;
          for (int to = 0; to < rank; ++to) first += Split(source, to);
          add(of(source), first, Split(source, rank));
        }
        break;
      case Kind::kReduceScatter: {
        const auto own = static_cast<uint64_t>(rank);
        const uint64_t each = rows / kRanks, more = rows % kRanks;
        add(combined, own * each + std::min(own, more), each + (own < more ? 1 : 0));
        break;
      }
      case Kind::kBarrier: break;
    }
    return result;
  }
};

template <typename T>
void Write(const std::vector<double>& values, std::vector<char>& bytes) {
  bytes.resize(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
std::vector<double> Read(const Buffer& buffer) {
  const T* first = static_cast<const T*>(buffer.data);
  return std::vector<double>(first, first + buffer.count);
}

std::vector<char> Encoded(const std::vector<double>& values, DType dtype) {
  std::vector<char> bytes;
  if (dtype == DType::kI32) Write<int32_t>(values, bytes);
  if (dtype == DType::kI64) Write<int64_t>(values, bytes);
  if (dtype == DType::kF32) Write<float>(values, bytes);
  if (dtype == DType::kF64) Write<double>(values, bytes);
  return bytes;
}

std::vector<double> Decoded(const Buffer& buffer) {
  if (buffer.dtype == DType::kI32) return Read<int32_t>(buffer);
  if (buffer.dtype == DType::kI64) return Read<int64_t>(buffer);
  return buffer.dtype == DType::kF32 ? Read<float>(buffer) : Read<double>(buffer);
}

class Player {
 public:
  Player(NamedRank& rank, NamedQueue& impatient) : r_(rank), impatient_(impatient) {}

  // Half of the names have the same tensor in every round. The others have a new tensor each time.
  void Round(unsigned round) {
    std::mt19937 faults(round);
    const bool differs = round % 5 == 3, skips = round % 25 == 7;
    const int culprit = static_cast<int>(faults() % kRanks);
    const int victim = static_cast<int>(faults() % kRandomTensors);
    std::vector<int> order(kRandomTensors);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(
        order.begin(), order.end(), std::mt19937(round * kRanks + static_cast<unsigned>(r_.rank)));
    std::vector<std::vector<char>> memory(kRandomTensors);
    std::vector<std::optional<NamedWork>> works(kRandomTensors);
    for (const int i : order) {
      const Story story(static_cast<unsigned>(i) + (i % 2 == 0 ? 0 : 1000 * (round + 1)));
      const auto slot = static_cast<size_t>(i);
      const bool wrong = differs && i == victim && r_.rank == culprit;
      works[slot] = Submit(r_.queue, Text("tensor ", i), story, memory[slot], wrong);
    }
    for (int i = 0; i < kRandomTensors; ++i) {
      const Story story(static_cast<unsigned>(i) + (i % 2 == 0 ? 0 : 1000 * (round + 1)));
      if (differs && i == victim) {
        ExpectMismatch(ErrorOf(*works[static_cast<size_t>(i)]), i, culprit);
        continue;
      }
      works[static_cast<size_t>(i)]->Wait();
      ExpectEqual(
          Decoded(works[static_cast<size_t>(i)]->result(0).result), story.Result(r_.rank),
          Text("round ", round, ", tensor ", i, ", ", NameOf(story.kind)));
    }
    if (skips) Skip(round, culprit);
  }

 private:
  NamedWork Submit(
      NamedQueue& queue, const std::string& name, const Story& story, std::vector<char>& memory,
      bool wrong) {
    std::vector<double> values;
    const uint64_t columns = story.columns + (wrong ? 1 : 0);
    const uint64_t rows = story.Rows(r_.rank);
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t column = 0; column < columns; ++column)
        values.push_back(story.Value(r_.rank, row, column));
    }
    memory = Encoded(values, story.dtype);
    memory.reserve(1);
    NamedTensor tensor{.name = name, .input = Buffer(memory.data(), values.size(), story.dtype)};
    tensor.shape = {rows, columns};
    if (story.kind == Kind::kAllToAll) {
      tensor.has_splits = true;
      for (int to = 0; to < kRanks; ++to) tensor.splits.push_back(story.Split(r_.rank, to));
    }
    return queue.Submit({.kind = story.kind, .op = story.op, .root = story.root}, {tensor});
  }

  static void ExpectMismatch(const std::string& error, int tensor, int culprit) {
    const std::string begin =
        Text("2: tensor 'tensor ", tensor, "': the ranks disagree on the shape: ");
    const std::string who = Text("rank ", culprit, " submitted");
    Expect(
        error.starts_with(begin) && error.find(who) != std::string::npos,
        Text(begin, who, "; found ", error));
  }

  // One rank skips a tensor, and the error on the other ranks must name the rank. Not all of these
  // ranks may have submitted the tensor at the first timeout.
  void Skip(unsigned round, int culprit) {
    std::vector<float> value = {1};
    NamedTensor tensor{.name = "skipped", .input = Buffer(value.data(), 1)};
    tensor.shape = {1};
    if (r_.rank != culprit) {
      const std::string error = ErrorOf(impatient_.Submit({}, {tensor}));
      Expect(
          error.starts_with("4: gave up after") &&
              error.find("tensor 'skipped', all_reduce (f32[1], sum), submitted by") !=
                  std::string::npos,
          Text("round ", round, ": ", error));
      const size_t waits = std::min(error.find("waits for rank"), error.size());
      const std::string missing = error.substr(waits, error.find(';', waits) - waits);
      Expect(
          missing.find(Text(culprit)) != std::string::npos,
          Text("round ", round, ", without rank ", culprit, ": ", error));
    }
    r_.world.Barrier();
    // The next submission, on the queue with the long time limit, works.
    value = {1};
    r_.queue.Submit({}, {tensor}).Wait();
    ExpectEqual(value, {kRanks}, "after it was skipped");
  }

  NamedRank& r_;
  NamedQueue& impatient_;
};

// The number of rounds: DTRUN_TEST_ROUNDS, 500 by default.
unsigned Rounds() {
  const char* asked = std::getenv("DTRUN_TEST_ROUNDS");
  return asked == nullptr ? 500 : static_cast<unsigned>(std::atoi(asked));
}

TEST_CASE("random tensors in different orders give the right results between faults") {
  const bool thread = GENERATE(false, true);
  const unsigned rounds = thread ? Rounds() / 5 : Rounds();
  CHECK(
      RunNamed(
          kRanks,
          [rounds](NamedRank& r) {
            Settings impatient{.timeout = std::chrono::milliseconds(20)};
            impatient.stall_warning = impatient.timeout;
            NamedQueue other(
                r.world, r.engine, [](auto, const auto&) {}, impatient);
            Player player(r, other);
            for (unsigned round = 0; round < rounds; ++round) player.Round(round);
            r.world.Barrier();
          },
          {.settings = {.batch_bytes = 1 << 16, .cache_capacity = 150}, .engine_thread = thread}) ==
      Nothing(kRanks));
}

}  // namespace
}  // namespace dtrun::testing

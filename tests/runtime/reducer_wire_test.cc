// Gradients in a compressed format on the wire.

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "dtrun/error.h"
#include "ops/reduce/reduce.h"
#include "runtime/reducer/reducer_settings.h"
#include "tests/runtime/reducer_stories.h"

namespace dtrun::testing {
namespace {

using runtime::CreateCast;
using runtime::Gradient;
using runtime::GradientReducer;
using runtime::ReducerSettings;
using runtime::WireFormat;

ReducerSettings Settings(
    std::shared_ptr<WireFormat> wire, ReduceOp op = ReduceOp::kSum, uint64_t bucket_bytes = 1024) {
  ReducerSettings settings{op, bucket_bytes};
  settings.wire = std::move(wire);
  return settings;
}

// Converts an f32 to 16 bits and back.
float Cast(float value, DType wire) {
  uint16_t narrow = 0;
  float wide = 0;
  ops::Convert(&value, DType::kF32, &narrow, wire, 1);
  ops::Convert(&narrow, wire, &wide, DType::kF32, 1);
  return wide;
}

TEST_CASE("f32 and f64 gradients keep their type and get the values rounded to 16 bits") {
  const DType wire = GENERATE(DType::kF16, DType::kBF16);
  const int size = GENERATE(1, 2, 3, 4);
  const bool placed = GENERATE(false, true);
  CHECK(RunShm(size, [&](ops::Communicator& comm) {
          std::vector<float> single(300'000), small(77);
          std::vector<double> wide(5000);
          std::vector<int64_t> counts(3);
          std::vector<Gradient> gradients = {
              {"single", Buffer(single.data(), single.size())},
              {"small", Buffer(small.data(), small.size())},
              {"wide", Buffer(wide.data(), wide.size())},
              {"counts", Buffer(counts.data(), counts.size())}};
          for (Gradient& gradient : gradients)
            if (placed) gradient.buffer.data = nullptr;
          GradientReducer reducer(comm, gradients, Settings(CreateCast(wire)));
          const auto value = [](uint64_t k) { return 1 + static_cast<float>(k % 1000) / 1000; };
          for (int step = 0; step < 3; ++step) {
            for (size_t i = 0; i < 2; ++i) {
              const Buffer gradient = reducer.gradient(i);
              for (uint64_t k = 0; k < gradient.count; ++k)
                static_cast<float*>(gradient.data)[k] = comm.rank() == 0 ? value(k) : 0;
            }
            auto* doubles = static_cast<double*>(reducer.gradient(2).data);
            for (uint64_t k = 0; k < wide.size(); ++k)
              doubles[k] = comm.rank() == 0 ? static_cast<double>(value(k)) : 0;
            auto* integers = static_cast<int64_t*>(reducer.gradient(3).data);
            integers[2] = 1'000'001;
            for (const size_t i : {2, 3, 0, 1}) reducer.MarkReady(i);
            reducer.Wait();
            for (size_t i = 0; i < 2; ++i) {
              const Buffer gradient = reducer.gradient(i);
              for (uint64_t k = 0; k < gradient.count; ++k)
                Expect(
                    static_cast<float*>(gradient.data)[k] == Cast(value(k), wire), "an f32's cast");
            }
            for (uint64_t k = 0; k < wide.size(); ++k)
              Expect(doubles[k] == static_cast<double>(Cast(value(k), wire)), "an f64's cast");
            Expect(integers[2] == 1'000'001 * size, "integers are not compressed");
          }
        }) == Nothing(size));
}

TEST_CASE("an f64 is rounded to 16 bits once") {
  const auto wire = CreateCast(DType::kF16);
  // Just above and below the middle of two f16 neighbours, by less than f32 can resolve.
  const double up = 1 + std::ldexp(1, -11) + std::ldexp(1, -40);
  const double middle = 1 + std::ldexp(1, -11);
  const double down = 1 + 3 * std::ldexp(1, -11) - std::ldexp(1, -40);
  double values[] = {
      up,
      middle,
      down,
      -up,
      1e300,
      -0.0,
      std::ldexp(1, -200),
      std::numeric_limits<double>::quiet_NaN(),
      std::numeric_limits<double>::infinity()};
  uint16_t narrow[9] = {};
  double back[9] = {};
  wire->Compress(0, Buffer(values, 9), Buffer(narrow, 9, DType::kF16));
  wire->Decompress(0, Buffer(narrow, 9, DType::kF16), Buffer(back, 9));
  const double step = std::ldexp(1, -10);
  CHECK(back[0] == 1 + step);
  CHECK(back[1] == 1);
  CHECK(back[2] == 1 + step);
  CHECK(back[3] == -1 - step);
  CHECK(std::isinf(back[4]));
  CHECK((back[5] == 0 && std::signbit(back[5])));
  CHECK(back[6] == 0);
  CHECK(std::isnan(back[7]));
  CHECK(std::isinf(back[8]));
}

TEST_CASE("sums of 16-bit values are computed in f32 and rounded once") {
  CHECK(RunShm(4, [&](ops::Communicator& comm) {
          GradientReducer reducer(comm, {Placed("g", 2)}, Settings(CreateCast(DType::kF16)));
          auto* g = static_cast<float*>(reducer.gradient(0).data);
          // In f16, 2048 + 1 is 2048.
          g[0] = comm.rank() == 0 ? 2048 : 1;
          reducer.Wait();
          Expect(g[0] == 2052, "2051, rounded to even");
        }) == Nothing(4));
}

TEST_CASE("gradients and flags cross the wire in 16 bits") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(
      comm, {Placed("a", 16), Placed("b", 300'000), Placed("c", 16, DType::kI32)},
      Settings(CreateCast(DType::kF16)));
  reducer.Wait();
  CHECK(calls == Calls{"i32 16", "f16 300000", "f16 19"});
}

TEST_CASE("unused gradients are known and places may be swapped with compression too") {
  const DType wire = GENERATE(DType::kF16, DType::kBF16);
  constexpr uint64_t kLarge = 300'000;
  CHECK(RunShm(3, [&](ops::Communicator& comm) {
          std::vector<float> packed(10);
          GradientReducer reducer(
              comm,
              {Placed("large", kLarge),
               Placed("other", kLarge),
               {"packed", Buffer(packed.data(), packed.size())}},
              Settings(CreateCast(wire), ReduceOp::kAverage));
          for (int step = 0; step < 4; ++step) {
            packed.assign(packed.size(), 7);
            float* places[] = {
                static_cast<float*>(reducer.gradient(0).data),
                static_cast<float*>(reducer.gradient(1).data)};
            if (step % 2 == 1) std::swap(places[0], places[1]);
            std::fill(places[0], places[0] + kLarge, static_cast<float>(comm.rank()));
            reducer.MarkReadyAt(0, places[0], places[0]);
            if (comm.rank() == 1) reducer.MarkUnusedAt(1, places[1]);
            if (comm.rank() != 1) {
              std::fill(places[1], places[1] + kLarge, 3.0f);
              reducer.MarkReadyAt(1, places[1], places[1]);
            }
            if (step < 2) reducer.MarkUnused(2);
            reducer.Wait();
            Expect(places[0][kLarge - 1] == 1 && places[1][0] == 2, "the average");
            Expect(reducer.WasUsed(0) && reducer.WasUsed(1), "they were used");
            Expect(reducer.WasUsed(2) == (step >= 2), "the last was used in some steps");
            Expect(packed[9] == 7, "it keeps its values");
          }
        }) == Nothing(3));
}

// Sends the sign of each element. With feedback, the next step adds the error of this step.
class Signs : public WireFormat {
 public:
  explicit Signs(bool feedback) : feedback_(feedback) {}
  std::string description() const override { return "format 'signs' of i32"; }
  DType dtype() const override { return DType::kI32; }
  uint64_t Count(size_t bucket, const Buffer& gradients) override {
    if (lost_.size() <= bucket) lost_.resize(bucket + 1);
    lost_[bucket].assign(gradients.count, 0.0f);
    return gradients.count;
  }
  void Compress(size_t bucket, const Buffer& gradients, const Buffer& wire) override {
    const auto* values = static_cast<const float*>(gradients.data);
    for (uint64_t k = 0; k < wire.count; ++k) {
      const float value = values[k] + (feedback_ ? lost_[bucket][k] : 0);
      const int sign = value > 0 ? 1 : -1;
      static_cast<int32_t*>(wire.data)[k] = sign;
      lost_[bucket][k] = value - static_cast<float>(sign) * kStep;
    }
  }
  void Decompress(size_t, const Buffer& wire, const Buffer& gradients) override {
    for (uint64_t k = 0; k < wire.count; ++k)
      static_cast<float*>(gradients.data)[k] =
          static_cast<float>(static_cast<const int32_t*>(wire.data)[k]) * kStep;
  }

 private:
  static constexpr float kStep = 0.5f;
  bool feedback_;
  std::vector<std::vector<float>> lost_;  // by bucket
};

TEST_CASE("a format may keep its error and add it in the next step") {
  const bool feedback = GENERATE(false, true);
  const int size = GENERATE(1, 2, 4);
  CHECK(RunShm(size, [&](ops::Communicator& comm) {
          GradientReducer reducer(
              comm, {Placed("a", 3), Placed("b", 40), Placed("c", 500)},
              Settings(std::make_shared<Signs>(feedback)));
          double sum = 0;
          constexpr int kSteps = 100;
          for (int step = 0; step < kSteps; ++step) {
            for (const size_t i : {1, 2, 0}) {  // the buckets change after the first step
              const Buffer gradient = reducer.gradient(i);
              std::fill_n(static_cast<float*>(gradient.data), gradient.count, 0.125f);
              reducer.MarkReady(i);
            }
            reducer.Wait();
            sum += static_cast<double>(static_cast<float*>(reducer.gradient(2).data)[499]);
            Expect(reducer.WasUsed(0), "flags do not go through the format");
          }
          const double exact = 0.125 * kSteps * size;
          Expect(
              (std::abs(sum - exact) < 1.5 * size) == feedback,
              base::Text("the sum of steps: ", sum, ", exact ", exact));
        }) == Nothing(size));
}

// Throws in the function that `where` names.
class Failing : public WireFormat {
 public:
  explicit Failing(const char* where) : where_(where) {}
  std::string description() const override { return "format 'failing' of f32"; }
  DType dtype() const override { return DType::kF32; }
  uint64_t Count(size_t, const Buffer& gradients) override {
    Fail("count");
    return gradients.count;
  }
  void Compress(size_t, const Buffer& gradients, const Buffer& wire) override {
    Fail("compress");
    std::memcpy(wire.data, gradients.data, gradients.bytes());
  }
  void Decompress(size_t, const Buffer& wire, const Buffer& gradients) override {
    Fail("decompress");
    std::memcpy(gradients.data, wire.data, gradients.bytes());
  }

 private:
  void Fail(const std::string& where) const {
    if (where == where_) throw std::domain_error("out of bits in " + where);
  }
  std::string where_;
};

TEST_CASE("an exception of a format reaches its rank and other ranks time out") {
  const char* where = GENERATE("compress", "decompress");
  const Texts texts = RunShm(
      3,
      [&](ops::Communicator& comm) {
        GradientReducer reducer(
            comm, {Placed("a", 16), Placed("b", 16)},
            Settings(std::make_shared<Failing>(comm.rank() == 1 ? where : ""), ReduceOp::kSum, 64));
        std::string first;
        for (int step = 0; step < 2; ++step) {
          try {
            reducer.MarkReady(1);
            reducer.Wait();
          } catch (const std::domain_error& error) {
            Expect(comm.rank() == 1, "this rank's format");
            if (step == 1) throw;
            first = error.what();
          }
        }
      },
      std::chrono::seconds(4));
  CHECK(texts[1] == std::string("out of bits in ") + where);
  for (const size_t rank : {0u, 2u})
    CHECK_THAT(texts[rank], Catch::Contains("waits for rank 1 to call it"));
}

TEST_CASE("different formats on the ranks are named in the error") {
  const Texts texts = RunShm(2, [&](ops::Communicator& comm) {
    std::shared_ptr<WireFormat> wire = CreateCast(DType::kF16);
    if (comm.rank() == 1) wire = std::make_shared<Failing>("");
    GradientReducer(comm, {Placed("a", 16)}, Settings(wire));
  });
  CHECK(
      texts[0] ==
      "the ranks have different gradients to reduce: the reducer's options are sum in buckets of "
      "1024 bytes, the first of 1024, on the wire as f16 on rank 0, sum in buckets of 1024 bytes, "
      "the first of 1024, on the wire as format 'failing' of f32 on rank 1");
  CHECK(texts[1] == texts[0]);
}

}  // namespace
}  // namespace dtrun::testing

// Reducer options set in C++, and in C by programs of earlier and later versions.

#include <dtrun/distributed_optimizer.h>
#include <dtrun/gradient_reducer.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/c_api/handles.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

// Runs `rank_main` on `size` ranks with a time limit of 4 s and returns their errors ("" for none).
Texts OnImpatientRanks(int size, const std::function<void(Communicator&)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::EngineOptions options{.may_spin = false};
    options.stall_warning = options.timeout = std::chrono::seconds(4);
    ops::Engine engine(options, clock, [](auto, const auto&) {});
    const auto shm =
        ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    const auto recorder = ops::FlightRecorder::InMemory(bootstrap.rank(), "here");
    dtrun_communicator handle{{.recorder = recorder.get()}, shm.get(), nullptr, 1024};
    Communicator world(&handle, Communicator::Ownership::kBorrowed);
    rank_main(world);
  });
}

std::vector<Gradient> Floats(size_t gradients, uint64_t count) {
  std::vector<Gradient> list;
  for (size_t i = 0; i < gradients; ++i)
    list.push_back({"g" + std::to_string(i), Buffer(nullptr, count, DType::kF32)});
  return list;
}

float* DataOf(const GradientReducer& reducer, size_t i) {
  return static_cast<float*>(reducer.gradient(i).data);
}

TEST_CASE("a reducer obeys groups and first_bucket_bytes and wire and rebuild") {
  CHECK(OnImpatientRanks(2, [](Communicator& world) {
          ReducerOptions options;
          options.op = ReduceOp::kSum;
          options.first_bucket_bytes = 64;
          options.groups = {{0, 3}, {2, 1}};
          options.wire = Wire::kBF16;
          options.rebuild = false;
          GradientReducer reducer(world, Floats(5, 100), options);
          for (int step = 0; step < 2; ++step) {
            for (size_t i = 0; i < 5; ++i) DataOf(reducer, i)[99] = 1.001f;  // 1 in bf16
            for (size_t i = 5; i-- > 0;) reducer.MarkReady(i);
            reducer.Wait();
            for (size_t i = 0; i < 5; ++i) Expect(DataOf(reducer, i)[99] == 2, "the rounded sum");
            // Two groups and one gradient make three buckets. Elements have 16 bits, with five
            // flags.
            const StepStatistics last = reducer.statistics().last;
            Expect(last.buckets == 3, "the buckets");
            Expect(last.bytes == (5 * 112 + 5) * 2, "the bytes on the wire");
          }
        }) == Nothing(2));
}

// A wire format that halves every gradient.
class Halves : public WireFormat {
 public:
  std::string name() const override { return "halves"; }
  DType dtype() const override { return DType::kF32; }
  uint64_t Count(size_t, const Buffer& gradients) override { return gradients.count; }
  void Compress(size_t, const Buffer& gradients, const Buffer& wire) override {
    if (fails) throw std::domain_error("no halves any more");
    for (uint64_t k = 0; k < wire.count; ++k)
      static_cast<float*>(wire.data)[k] = static_cast<const float*>(gradients.data)[k] / 2;
  }
  void Decompress(size_t, const Buffer& wire, const Buffer& gradients) override {
    std::memcpy(gradients.data, wire.data, wire.bytes());
  }
  bool fails = false;
};

TEST_CASE("a custom wire format works and its exception is rethrown by every later Wait") {
  const Texts texts = OnImpatientRanks(2, [](Communicator& world) {
    const auto format = std::make_shared<Halves>();
    ReducerOptions options;
    options.op = ReduceOp::kSum;
    options.wire_format = format;
    GradientReducer made(world, Floats(3, 10), options);
    GradientReducer reducer = std::move(made);
    for (size_t i = 0; i < 3; ++i) DataOf(reducer, i)[9] = 3;
    reducer.Wait();
    Expect(DataOf(reducer, 2)[9] == 3, "twice a half");
    format->fails = world.rank() == 1;
    try {
      reducer.Wait();
    } catch (const std::domain_error&) {
      format->fails = false;
      reducer.Wait();
    }
  });
  CHECK(texts[1] == "no halves any more");
  CHECK_THAT(texts[0], Contains("waits for rank 1 to call it"));
}

TEST_CASE("groups of an optimizer are set by parameter names or by their number") {
  struct Model : Optimizer {
    std::vector<float> values = std::vector<float>(4);
    std::vector<Parameter> list;
    Model() {
      for (size_t i = 0; i < 4; ++i)
        list.push_back({"p" + std::to_string(i), Buffer(&values[i], 1), Buffer()});
    }
    std::vector<Parameter>& parameters() override { return list; }
    std::vector<NamedBuffer> state() override { return {}; }
    void Step() override {
      for (size_t i = 0; i < 4; ++i) values[i] -= *static_cast<float*>(list[i].gradient.data);
    }
  };
  const auto run = [](const std::function<void(DistributedOptions&)>& set, uint64_t buckets = 0) {
    return OnImpatientRanks(2, [&](Communicator& world) {
      Model model;
      DistributedOptions options;
      options.local_parameters = {"p1"};
      options.wire = Wire::kF16;
      options.first_bucket_bytes = 512;
      options.rebuild = false;
      set(options);
      DistributedOptimizer optimizer(world, model, options);
      for (int step = 1; step <= 3; ++step) {
        for (const Parameter& parameter : model.list)
          *static_cast<float*>(parameter.gradient.data) = static_cast<float>(2 * world.rank());
        for (size_t i = 4; i-- > 0;) optimizer.MarkReady(i);
        optimizer.Step();
        Expect(model.values[0] == static_cast<float>(-step), "the average");
        Expect(model.values[1] == static_cast<float>(-2 * world.rank() * step), "the local one");
        if (buckets > 0) Expect(optimizer.statistics().last.buckets == buckets, "the buckets");
      }
    });
  };
  CHECK(run([](auto& o) { o.groups = {{"p3", "p0"}}; }, 2) == Nothing(2));
  CHECK(run([](auto& o) { o.equal_groups = 2; }, 2) == Nothing(2));
  CHECK(run([](auto& o) {
          o.equal_groups = 4;
        })[0] == "equal_groups is 4; expected at most 3, a group for each gradient");
  CHECK(run([](auto& o) {
          o.equal_groups = 1, o.groups = {{"p0"}};
        })[0] == "DistributedOptimizer: groups and equal_groups are given; expected one of them");
  CHECK(run([](auto& o) {
          o.wire = Wire::kNone;
          o.wire_format = std::make_shared<Halves>();
        })[0] == "not so: the average");
  CHECK(run([](auto& o) {
          o.groups = {{"p1"}};
        })[0] == "groups: the optimizer reduces no parameter 'p1'");
  CHECK_THAT(
      run([](auto& o) {
        o.groups = {{"p2"}, {"p0", "p2"}};
      })[1],
      Contains("'p2' is in groups 0 and 1; expected one"));
}

// ---- In C

std::string MessageOf(dtrun_error* error) {
  if (error == nullptr) return "";
  const std::string message = dtrun_error_message(error);
  dtrun_error_destroy(error);
  return message;
}

std::string Make(Communicator& world, const dtrun_reducer_options& options) {
  const dtrun_gradient gradient = {"g", dtrun_host_buffer(nullptr, 4, DTRUN_F32)};
  dtrun_reducer* reducer = nullptr;
  std::string message =
      MessageOf(dtrun_reducer_create_with(world.handle(), &gradient, 1, &options, &reducer));
  if (message.empty()) message = MessageOf(dtrun_reducer_wait(reducer));
  dtrun_reducer_destroy(reducer);
  return message;
}

TEST_CASE("options of earlier and later versions are accepted and unknown options are refused") {
  CHECK(OnImpatientRanks(1, [](Communicator& world) {
          dtrun_reducer_options options = dtrun_default_reducer_options();
          // Fields behind the end of a shorter struct are ignored.
          options.struct_bytes = offsetof(dtrun_reducer_options, first_bucket_bytes);
          options.wire = 77;
          CHECK(Make(world, options) == "");
          options.struct_bytes -= 8;
          CHECK_THAT(Make(world, options), Contains("struct_bytes of the options is 32; expected"));
          struct {
            dtrun_reducer_options known = dtrun_default_reducer_options();
            uint64_t later = 0;
          } longer;
          longer.known.struct_bytes = sizeof longer;
          CHECK(Make(world, longer.known) == "");
          longer.later = 1;
          CHECK_THAT(Make(world, longer.known), Contains("sets an option that this version"));
        }) == Nothing(1));
}

TEST_CASE("an invalid wire format in C is refused and a failing wire format is named") {
  CHECK(OnImpatientRanks(1, [](Communicator& world) {
          dtrun_wire_format format = {};
          format.name = "zip";
          format.dtype = DTRUN_U8;
          format.count = [](void*, uint64_t, dtrun_buffer gradients, uint64_t* count) {
            *count = gradients.count * 4;
            return 0;
          };
          format.compress = [](void*, uint64_t, dtrun_buffer, dtrun_buffer) { return 5; };
          dtrun_reducer_options options = dtrun_default_reducer_options();
          options.wire_format = &format;
          CHECK_THAT(Make(world, options), Contains("decompress of the wire format"));
          format.decompress = format.compress;
          CHECK(
              Make(world, options) ==
              "wire format 'zip': compress of bucket 0 returned 5; expected 0");
          options.wire = DTRUN_WIRE_F16;
          CHECK(Make(world, options) == "a wire and a wire_format are given; expected one of them");
          options.wire_format = nullptr;
          options.wire = 3;
          CHECK(Make(world, options) == "wire is 3; expected 0, 1 or 2");
          options.wire = DTRUN_WIRE_NONE;
          options.group_count = 1;
          CHECK_THAT(Make(world, options), Contains("the groups"));
        }) == Nothing(1));
}

}  // namespace
}  // namespace dtrun::testing

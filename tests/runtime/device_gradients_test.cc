// Gradients on real GPUs or on the simulated GPU.

#include <catch2/catch.hpp>
#include <vector>

#include "dtrun/error.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/backends/backends.h"
#include "tests/runtime/reducer_stories.h"

namespace dtrun::testing {
namespace {

using runtime::GradientReducer;

// A trainer's stream, with access to GPU buffers from the host.
class Trainer {
 public:
  explicit Trainer(int rank = 0)
      : device_(gpu::Device::Get(rank % gpu::DeviceCount())), stream_(device_) {}

  runtime::Gradient Placed(const std::string& name, uint64_t count, DType dtype = DType::kF32) {
    return {name, Here(nullptr, count, dtype)};
  }
  Buffer Here(void* data, uint64_t count, DType dtype = DType::kF32) {
    Buffer buffer(data, count, dtype);
    buffer.device = device_.index();
    buffer.stream = stream_.get();
    return buffer;
  }
  void Write(const Buffer& to, const std::vector<float>& values) {
    const gpu::DeviceScope scope(device_);
    gpu::CopyToDevice(gpu::AddressOf(to.data), values.data(), to.bytes(), stream_.get());
    stream_.Synchronize();
  }
  std::vector<float> Read(const Buffer& from) {
    std::vector<float> values(from.count);
    const gpu::DeviceScope scope(device_);
    gpu::CopyToHost(values.data(), gpu::AddressOf(from.data), from.bytes(), stream_.get());
    stream_.Synchronize();
    return values;
  }
  const gpu::Device& device() const { return device_; }

 private:
  const gpu::Device& device_;
  gpu::Stream stream_;
};

Texts RunGpus(int size, const std::function<void(ops::Communicator&, Trainer&)>& rank_main) {
  return RunShm(size, [&](ops::Communicator& comm) {
    comm.UseDevices(ops::DeviceBackends());
    Trainer trainer(comm.rank());
    rank_main(comm, trainer);
  });
}

std::vector<float> Values(uint64_t count, double scale) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(scale * double(i % 17 + 1));
  return values;
}

TEST_CASE(
    "placed and packed gradients on GPUs are averaged over ranks also after the buckets are "
    "rebuilt") {
  const int size = GENERATE(1, 2, 3);
  CHECK(RunGpus(size, [&](ops::Communicator& comm, Trainer& trainer) {
          const gpu::DeviceMemory packed(trainer.device(), 5000 * sizeof(float));
          const gpu::DeviceMemory alone(trainer.device(), 300'000 * sizeof(float));
          GradientReducer reducer(
              comm,
              {trainer.Placed("a", 1000),
               {"packed", trainer.Here(packed.as<void>(), 5000)},
               {"alone", trainer.Here(alone.as<void>(), 300'000)},
               trainer.Placed("b", 7)},
              {.op = ReduceOp::kAverage, .bucket_bytes = 16 << 10});
          const double mean = (size + 1) / 2.0;
          for (int step = 1; step <= 3; ++step) {
            for (const size_t i : {3u, 1u, 2u, 0u}) {
              const Buffer gradient = reducer.gradient(i);
              Expect(gradient.device == trainer.device().index(), "it lies on the GPU");
              trainer.Write(gradient, Values(gradient.count, step * (comm.rank() + 1)));
              reducer.MarkReady(i);
            }
            reducer.Wait();
            for (size_t i = 0; i < 4; ++i) {
              const Buffer gradient = reducer.gradient(i);
              const std::vector<float> wanted = Values(gradient.count, step * mean);
              const std::vector<float> found = trainer.Read(gradient);
              for (size_t k = 0; k < wanted.size(); ++k)
                Expect(
                    std::abs(found[k] - wanted[k]) < 1e-4f * wanted[k],
                    base::Text("gradient ", i, " in step ", step));
            }
          }
        }) == Nothing(size));
}

TEST_CASE(
    "a gradient on a GPU counts as used if any rank has used it and as unused if no rank has used "
    "it") {
  CHECK(RunGpus(2, [&](ops::Communicator& comm, Trainer& trainer) {
          GradientReducer reducer(
              comm, {trainer.Placed("a", 10), trainer.Placed("b", 10), trainer.Placed("c", 10)},
              {.op = ReduceOp::kSum});
          for (int step = 0; step < 2; ++step) {
            trainer.Write(reducer.gradient(0), Values(10, 1));
            reducer.MarkReady(0);
            trainer.Write(reducer.gradient(1), Values(10, 5));
            if (comm.rank() == 1) reducer.MarkReady(1);
            if (comm.rank() == 0) reducer.MarkUnused(1);
            reducer.MarkUnused(2);
            reducer.Wait();
            Expect(reducer.WasUsed(0) && reducer.WasUsed(1), "used");
            Expect(!reducer.WasUsed(2), "unused");
            Expect(trainer.Read(reducer.gradient(0)) == Values(10, 2), "the sum");
            Expect(trainer.Read(reducer.gradient(1)) == Values(10, 5), "one rank's");
            Expect(trainer.Read(reducer.gradient(2)) == Values(10, 0), "zeros");
          }
        }) == Nothing(2));
}

// Rounds each element down to an integer, which carries no flags.
class Integers : public runtime::WireFormat {
 public:
  std::string description() const override { return "format 'integers' of i32"; }
  DType dtype() const override { return DType::kI32; }
  uint64_t Count(size_t, const Buffer& gradients) override { return gradients.count; }
  void Compress(size_t, const Buffer& gradients, const Buffer& wire) override {
    for (uint64_t k = 0; k < wire.count; ++k)
      static_cast<int32_t*>(wire.data)[k] =
          static_cast<int32_t>(static_cast<const float*>(gradients.data)[k]);
  }
  void Decompress(size_t, const Buffer& wire, const Buffer& gradients) override {
    for (uint64_t k = 0; k < wire.count; ++k)
      static_cast<float*>(gradients.data)[k] =
          static_cast<float>(static_cast<const int32_t*>(wire.data)[k]);
  }
};

TEST_CASE("gradients on a GPU are compressed in host memory with their flags apart") {
  const bool casts = GENERATE(false, true);
  CHECK(RunGpus(2, [&](ops::Communicator& comm, Trainer& trainer) {
          const gpu::DeviceMemory large(trainer.device(), 300'000 * sizeof(float));
          GradientReducer reducer(
              comm,
              {trainer.Placed("a", 1000),
               {"large", trainer.Here(large.as<void>(), 300'000)},
               trainer.Placed("whole", 3, DType::kI32),
               trainer.Placed("b", 7)},
              {.op = ReduceOp::kSum,
               .bucket_bytes = 16 << 10,
               .wire = casts ? runtime::CreateCast(DType::kBF16) : std::make_shared<Integers>()});
          for (int step = 1; step <= 3; ++step) {
            for (const size_t i : {3u, 1u, 0u}) {
              const Buffer gradient = reducer.gradient(i);
              trainer.Write(gradient, Values(gradient.count, step * (comm.rank() + 1)));
              if (i != 0 || comm.rank() == 1) reducer.MarkReady(i);
            }
            if (comm.rank() == 0) reducer.MarkUnused(0);
            reducer.MarkUnused(2);
            reducer.Wait();
            for (const size_t i : {0u, 1u, 3u})
              Expect(
                  trainer.Read(reducer.gradient(i)) ==
                      Values(reducer.gradient(i).count, step * (i == 0 ? 2 : 3)),
                  base::Text("gradient ", i, " in step ", step));
            Expect(reducer.WasUsed(0) && reducer.WasUsed(1) && !reducer.WasUsed(2), "the flags");
          }
        }) == Nothing(2));
}

TEST_CASE("gradients in several places and autotuning on a GPU are refused") {
  Calls calls;
  RecordingCommunicator comm(calls);
  Trainer trainer;
  CHECK_THROWS_WITH(
      GradientReducer(comm, {trainer.Placed("a", 1), Placed("b", 1)}, {}),
      Catch::StartsWith("gradient 'b' lies in host memory, 'a' on GPU 0 (stream ") &&
          Catch::EndsWith("expected all in one place"));
  runtime::ReducerSettings tuned;
  tuned.autotune.emplace();
  CHECK_THROWS_WITH(
      GradientReducer(comm, {trainer.Placed("a", 1)}, tuned),
      "the gradients lie on a GPU; the autotuner, which measures what the host waits for, is for "
      "gradients in host memory");
  CHECK_THROWS_WITH(
      GradientReducer(comm, {trainer.Placed("a", 1)}, {}),
      "GPU 0: no backend here reaches GPU memory");
}

TEST_CASE("gradients on a GPU of one rank and in host memory of another rank are refused") {
  const Texts texts = RunGpus(2, [&](ops::Communicator& comm, Trainer& trainer) {
    const bool gpu = comm.rank() == 1;
    GradientReducer(comm, {gpu ? trainer.Placed("a", 4) : Placed("a", 4)}, {});
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Catch::Contains("on GPUs") && Catch::Contains("rank 1"));
}

}  // namespace
}  // namespace dtrun::testing

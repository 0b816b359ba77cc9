// Times training steps of cnn_fmnist's networks on one GPU. Compares them with the least time in
// which the GPU moves their bytes and does their multiplications. Both rates are measured in the
// same run: a large copy in GPU memory (CopyRate), and a large product of random matrices
// (MatrixRate). Also compares the optimizer's step over as many parameters as ResNet-50 has with
// the copy.

#include <dtrun/dtrun.h>
#include <dtrun/error.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_options.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/gpu/device_network.h"
#include "models/gpu/gpu_replica.h"
#include "models/gpu/kernel_args.h"
#include "models/gpu/network_plan.h"
#include "models/gpu/product.h"
#include "models/networks/network.h"

namespace dtrun::bench {
namespace {

using nlohmann::json;

struct Settings {
  std::string network = "C", json_file;
  std::vector<std::string> dtypes = {"f32", "bf16", "f16"};
  std::vector<uint64_t> batches = {1024, 4096, 16384, 32768};
  int device = 0, rounds = 5;
  uint64_t images = 60000, steps = 50, copy_bytes = uint64_t{1} << 30, matrix = 8192;
  uint64_t parameters = 25557032;  // ResNet-50's
};

DType DtypeOf(const std::string& name) {
  if (name == "bf16") return DType::kBF16;
  return name == "f16" ? DType::kF16 : DType::kF32;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median over `rounds` of the seconds per call. A round has `times` calls in a row. One untimed
// call precedes the rounds.
double MedianSeconds(
    const gpu::Stream& stream, int rounds, int times, const std::function<void()>& enqueue) {
  std::vector<double> seconds;
  gpu::Event begin(stream.device(), gpu::Event::Timing::kOn);
  gpu::Event end(stream.device(), gpu::Event::Timing::kOn);
  enqueue();
  for (int round = 0; round < rounds; ++round) {
    begin.Record(stream.get());
    for (int i = 0; i < times; ++i) enqueue();
    end.Record(stream.get());
    end.Synchronize();
    seconds.push_back(end.MillisecondsSince(begin) / 1e3 / times);
  }
  return Median(std::move(seconds));
}

// Bytes read and written per second.
double CopyRate(const gpu::Stream& stream, const Settings& s) {
  const gpu::DeviceMemory from(stream.device(), s.copy_bytes), to(stream.device(), s.copy_bytes);
  const gpu::DeviceScope scope(stream.device());
  const double seconds = MedianSeconds(stream, s.rounds, 10, [&] {
    gpu::CopyOnDevice(to.address(), from.address(), s.copy_bytes, stream.get());
  });
  return 2 * static_cast<double>(s.copy_bytes) / seconds;
}

// A square matrix of numbers in [-1, 1). With zeros, the GPU would be cooler than in practice, and
// so faster.
gpu::DeviceMemory RandomMatrix(const gpu::Stream& stream, uint64_t edge, DType dtype) {
  const uint64_t count = (edge * edge + 7) / 8 * 8;
  std::vector<float> values(count);
  uint64_t state = 88172645463325252u;  // G. Marsaglia, "Xorshift RNGs", 2003
  for (float& value : values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = static_cast<float>(static_cast<double>(state >> 11) * 0x1p-52 - 1);
  }
  gpu::DeviceMemory wide(stream.device(), count * sizeof(float));
  const gpu::DeviceScope scope(stream.device());
  gpu::CopyToDevice(wide.address(), values.data(), wide.bytes(), stream.get());
  stream.Synchronize();
  if (dtype == DType::kF32) return wide;
  gpu::DeviceMemory narrow(stream.device(), count * SizeOf(dtype));
  models::Launch(
      stream.device(), std::string("dtrun_narrow_") + NameOf(dtype), {1024, 256}, stream.get(),
      models::NarrowArgs{wide.as<float>(), narrow.as<void>(), count});
  stream.Synchronize();
  return narrow;
}

// Multiplications and additions per second.
double MatrixRate(const gpu::Stream& stream, const Settings& s, DType dtype) {
  const gpu::DeviceMemory a = RandomMatrix(stream, s.matrix, dtype);
  const gpu::DeviceMemory b = RandomMatrix(stream, s.matrix, dtype);
  const gpu::DeviceMemory c(stream.device(), s.matrix * s.matrix * SizeOf(dtype));
  const gpu::DeviceMemory workspace(stream.device(), 64 << 20);
  const auto matrix = [&](const gpu::DeviceMemory& memory) {
    return models::Matrix{memory.as<void>(), s.matrix, s.matrix, dtype};
  };
  models::Product product(
      stream,
      {.a = matrix(a), .b = matrix(b), .c = matrix(c), .selection = models::Selection::kFastest},
      {workspace.as<void>(), workspace.bytes()});
  return product.operations() / MedianSeconds(stream, s.rounds, 10, [&] { product.Enqueue(); });
}

struct Images {
  explicit Images(uint64_t count) {
    for (uint64_t i = 0; i < count * 784; ++i)
      pixels.push_back(static_cast<uint8_t>((i + 1) * 2654435761u >> 24));
    for (uint64_t i = 0; i < count; ++i) labels.push_back(static_cast<uint8_t>(i % 10));
  }
  models::ByteImages view() const { return {labels.size(), 784, pixels.data(), labels.data()}; }

  std::vector<uint8_t> pixels, labels;
};

struct Rates {
  double bytes = 0, operations = 0;  // per second
};

// Training steps with one batch size and one place of the data.
class Training {
 public:
  Training(
      Context& job, const Settings& s, const Images& images, const std::string& dtype,
      uint64_t batch, models::GpuData data)
      : network_(models::NetworkByName(s.network)),
        model_(
            network_.input, std::move(network_.layers),
            {.micro_batch = 1, .micro_batches = 1, .seed = 1}),
        batch_(batch),
        per_epoch_(images.labels.size() / batch) {
    models::GpuOptions options;
    options.device = s.device;
    options.dtype = DtypeOf(dtype);
    options.rows = batch;
    options.seed = 1;
    options.steps_per_epoch = 1;
    options.data = data;
    replica_ = models::GpuReplica::Make(model_, job.world(), options);
    replica_->LoadTrainingData(images.view());
    std::vector<uint32_t> order(images.labels.size());
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    replica_->SetOrder(order);
    SecondsOf(3);  // loads kernels and makes the graph
  }

  double SecondsOf(uint64_t steps) {
    const auto start = std::chrono::steady_clock::now();
    for (const uint64_t end = done_ + steps; done_ < end; ++done_) {
      models::GpuStep step;
      step.step = done_;
      step.first_example = done_ % per_epoch_ * batch_;
      step.examples = step.global_batch = batch_;
      step.learning_rate = 1e-4;
      step.next_example = (done_ + 1) % per_epoch_ * batch_;
      step.next_examples = batch_;
      replica_->Step(step);
    }
    replica_->TakeMetrics();  // waits
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  models::NetworkPlan plan() { return models::PlanNetwork(model_, 1); }

 private:
  models::Network network_;
  models::Sequential model_;
  std::unique_ptr<models::GpuReplica> replica_;
  uint64_t batch_, per_epoch_, done_ = 0;
};

json MeasureSteps(
    Context& job, const Settings& s, const Images& images, const std::string& dtype, uint64_t batch,
    const Rates& rates) {
  Training training(job, s, images, dtype, batch, models::GpuData::kResident);
  std::vector<double> seconds;
  for (int round = 0; round < s.rounds; ++round) seconds.push_back(training.SecondsOf(s.steps));
  const double per_image = Median(seconds) / static_cast<double>(s.steps * batch);
  const models::NetworkPlan plan = training.plan();
  const double bytes = plan.BytesPerExample(SizeOf(DtypeOf(dtype)));
  const double operations = plan.OperationsPerExample();
  const double copying = bytes / rates.bytes, multiplying = operations / rates.operations;
  return {
      {"what", "step"},
      {"network", s.network},
      {"dtype", dtype},
      {"batch", batch},
      {"images_per_s", 1 / per_image},
      {"bytes_per_image", bytes},
      {"operations_per_image", operations},
      {"ns_per_image", per_image * 1e9},
      {"copy_ns_per_image", copying * 1e9},
      {"matrix_ns_per_image", multiplying * 1e9},
      {"share", std::max(copying, multiplying) / per_image}};
}

// Rounds with resident and with streamed data alternate. `ratio` is the median of the rounds'
// ratios.
json MeasureStreaming(
    Context& job, const Settings& s, const Images& images, const std::string& dtype,
    uint64_t batch) {
  Training resident(job, s, images, dtype, batch, models::GpuData::kResident);
  Training streamed(job, s, images, dtype, batch, models::GpuData::kStreamed);
  std::vector<double> seconds, ratios;
  for (int round = 0; round < s.rounds; ++round) {
    const double here = resident.SecondsOf(s.steps);
    seconds.push_back(streamed.SecondsOf(s.steps));
    ratios.push_back(here / seconds.back());
  }
  return {
      {"what", "streamed"},
      {"network", s.network},
      {"dtype", dtype},
      {"batch", batch},
      {"images_per_s", static_cast<double>(s.steps * batch) / Median(seconds)},
      {"ratio", Median(ratios)}};
}

// Adam, in f32 or with the copy of the values that a bf16 step computes with.
json MeasureOptimizer(const gpu::Stream& stream, const Settings& s, DType dtype, double copy_rate) {
  const uint64_t count = (s.parameters + 7) / 8 * 8;
  const gpu::Device& device = stream.device();
  const gpu::DeviceMemory values(device, count * 4), gradients(device, count * 4);
  const gpu::DeviceMemory m(device, count * 4), v(device, count * 4), copy(device, count * 2);
  const gpu::DeviceMemory state(device, sizeof(models::StepState));
  models::StepState step;
  step.update_rate = 1e-4f;
  {
    const gpu::DeviceScope scope(device);
    gpu::CopyToDevice(state.address(), &step, sizeof step, stream.get());
    // All values are about 0.01. Square roots of zero would take a separate path.
    for (const gpu::DeviceMemory* each : {&values, &gradients, &m, &v})
      gpu::Fill(each->address(), 0x3C, each->bytes(), stream.get());
    stream.Synchronize();
  }
  const auto blocks =
      gpu::BlocksFor(count / 4, 256, 16 * static_cast<uint32_t>(device.multiprocessors()));
  const double seconds = MedianSeconds(stream, s.rounds, 20, [&] {
    models::Launch(
        device, std::string("dtrun_adam_") + NameOf(dtype), {blocks, 256}, stream.get(),
        models::AdamArgs{
            values.as<float>(), gradients.as<float>(), m.as<float>(), v.as<float>(),
            dtype == DType::kF32 ? nullptr : copy.as<void>(), state.as<models::StepState>(), count,
            0.1f, 0.001f, 1e-7f});
  });
  // Adam reads values, gradients and two moments, and writes all but the gradients.
  const double bytes = static_cast<double>(count) * (7 * 4 + (dtype == DType::kF32 ? 0.0 : 2.0));
  return {
      {"what", "optimizer"},
      {"optimizer", "adam"},
      {"copy", NameOf(dtype)},
      {"parameters", s.parameters},
      {"us", seconds * 1e6},
      {"bytes_per_s", bytes / seconds},
      {"share", bytes / seconds / copy_rate}};
}

void Print(const json& row) {
  if (row.contains("error")) {
    std::printf(
        "network %s %-4s batch %6llu: %s\n", row["network"].get<std::string>().c_str(),
        row["dtype"].get<std::string>().c_str(),
        static_cast<unsigned long long>(row["batch"].get<uint64_t>()),
        row["error"].get<std::string>().c_str());
  } else if (row["what"] == "streamed") {
    std::printf(
        "network %s %-4s batch %6llu: %12.0f images/s with streamed data, %.3f of resident data\n",
        row["network"].get<std::string>().c_str(), row["dtype"].get<std::string>().c_str(),
        static_cast<unsigned long long>(row["batch"].get<uint64_t>()),
        row["images_per_s"].get<double>(), row["ratio"].get<double>());
  } else if (row["what"] == "step") {
    std::printf(
        "network %s %-4s batch %6llu: %12.0f images/s, %8.1f ns an image; copies need %8.1f, "
        "products %8.1f: share %.3f\n",
        row["network"].get<std::string>().c_str(), row["dtype"].get<std::string>().c_str(),
        static_cast<unsigned long long>(row["batch"].get<uint64_t>()),
        row["images_per_s"].get<double>(), row["ns_per_image"].get<double>(),
        row["copy_ns_per_image"].get<double>(), row["matrix_ns_per_image"].get<double>(),
        row["share"].get<double>());
  } else {
    std::printf(
        "Adam, %llu parameters, copy in %s: %10.1f us, %.3f of the copy's rate\n",
        static_cast<unsigned long long>(row["parameters"].get<uint64_t>()),
        row["copy"].get<std::string>().c_str(), row["us"].get<double>(),
        row["share"].get<double>());
  }
  std::fflush(stdout);
}

json MeasureAll(Context& job, const Settings& s) {
  const gpu::Device& device = gpu::Device::Get(s.device);
  const gpu::Stream stream(device);
  Rates rates;
  rates.bytes = CopyRate(stream, s);
  std::printf("# %s: copies %.4g bytes/s\n", device.name().c_str(), rates.bytes);
  json rows = json::array();
  rows.push_back({{"what", "rates"}, {"device", device.name()}, {"copy_bytes_per_s", rates.bytes}});
  const auto add = [&](const json& row) {
    rows.push_back(row);
    Print(row);
  };
  const Images images(s.images);
  for (const std::string& dtype : s.dtypes) {
    rates.operations = MatrixRate(stream, s, DtypeOf(dtype));
    std::printf("# products in %s %.4g operations/s\n", dtype.c_str(), rates.operations);
    rows[0]["matrix_operations_per_s_" + dtype] = rates.operations;
    // If a batch does not fit, its row has the error, and the measurement goes on.
    const auto measure = [&](const char* what, uint64_t batch, const auto& run) {
      try {
        add(run());
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnavailable) throw;
        add(
            {{"what", what},
             {"network", s.network},
             {"dtype", dtype},
             {"batch", batch},
             {"error", error.what()}});
      }
    };
    for (const uint64_t batch : s.batches)
      measure("step", batch, [&] { return MeasureSteps(job, s, images, dtype, batch, rates); });
    const uint64_t largest = *std::max_element(s.batches.begin(), s.batches.end());
    measure("streamed", largest, [&] { return MeasureStreaming(job, s, images, dtype, largest); });
  }
  if (std::none_of(
          rows.begin(), rows.end(), [](const json& row) { return row.contains("images_per_s"); }))
    throw Error(
        ErrorCode::kUnavailable, "no batch fits: " + rows.back()["error"].get<std::string>());
  for (const DType dtype : {DType::kF32, DType::kBF16})
    add(MeasureOptimizer(stream, s, dtype, rates.bytes));
  return rows;
}

std::string ErrorIn(const Settings& s) {
  for (const uint64_t batch : s.batches) {
    if (batch <= s.images) continue;
    return "--batch: " + std::to_string(batch) + ", expected at most the " +
           std::to_string(s.images) + " of --images";
  }
  return "";
}

int Run(const Settings& s) {
  std::string error = ErrorIn(s);
  if (error.empty()) {
    try {
      Context job = Init();
      const json rows = MeasureAll(job, s);
      job.Shutdown();
      if (s.json_file.empty()) return 0;
      std::ofstream file(s.json_file);
      file << rows.dump(1) << "\n";
      if (file.flush()) return 0;
      error = "--json: " + s.json_file + ": cannot be written";
    } catch (const std::exception& exception) {
      error = exception.what();
    }
  }
  std::fprintf(stderr, "gpu_cnn_perf: %s\n", error.c_str());
  return 2;
}

}  // namespace
}  // namespace dtrun::bench

using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int main(int argc, char** argv) {
  dtrun::bench::Settings s;
  OptionSet options(
      "Training steps on one GPU, beside what its memory and its matrix units need at least.",
      "gpu_cnn_perf");
  const auto most = uint64_t{1} << 40;
  options.Add("--network", &s.network, "A, B, C or mlp", Words{"A", "B", "C", "mlp"});
  options.Add("--dtype", &s.dtypes, "what is computed in", Words{"f32", "bf16", "f16"});
  options.Add("--batch", &s.batches, "examples of a step", Range<uint64_t>{1, most});
  options.Add("--device", &s.device, "number of the GPU", Range<int>{0, 1024});
  options.Add("--images", &s.images, "in the data set", Range<uint64_t>{1, most});
  options.Add("--steps", &s.steps, "in a row", Range<uint64_t>{1, most});
  options.Add("--rounds", &s.rounds, "of which the median counts", Range<int>{1, 10000});
  options.Add("--copy-bytes", &s.copy_bytes, "of the copy", Range<uint64_t>{1, most});
  options.Add("--matrix", &s.matrix, "edge of the matrices", Range<int>{1, 100000});
  options.Add("--parameters", &s.parameters, "of the optimizer's step", Range<uint64_t>{1, most});
  options.Add("--json", &s.json_file, "write the rows to this file");
  if (const auto status = options.Parse(argc, argv)) return *status;
  return dtrun::bench::Run(s);
}

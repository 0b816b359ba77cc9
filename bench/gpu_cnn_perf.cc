// Times training steps of a network on one GPU. Compares them with the least time in which the GPU
// moves their bytes and does their multiplications. Both rates are measured in the same run: a
// large copy in GPU memory (CopyRate), and a large product of random matrices (MatrixRate). Also
// compares the optimizer's step over as many parameters as ResNet-50 has with the copy.

#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/strategy.h>
#include <dtrun/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/benchmark.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/gpu/cuda_device.h"
#include "models/gpu/cuda_network.h"
#include "models/gpu/layer_args.h"
#include "models/gpu/product.h"
#include "models/layers/network_graph.h"
#include "models/losses/loss.h"
#include "models/networks/network.h"
#include "models/optim/adam.h"
#include "models/train/replica.h"
#include "models/train/steps.h"

namespace dtrun::bench {
namespace {

using nlohmann::json;

struct Settings {
  std::string network = "C", json_file;
  std::vector<std::string> dtypes = {"f32", "bf16", "f16"};
  std::vector<uint64_t> batches = {1024, 4096, 16384, 32768};
  int device = 0, rounds = 5;
  uint64_t steps = 50, copy_bytes = uint64_t{1} << 30, matrix = 8192;
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
  const auto all = static_cast<uint32_t>(count);
  models::LaunchLayer(
      stream, models::CudaPlan::Typed("narrow", dtype), {1024, 256},
      models::LayerNarrowArgs{wide.as<float>(), narrow.as<void>(), all});
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

struct Rates {
  double bytes = 0, operations = 0;  // per second
};

// What one example needs at least. The forward pass reads and writes the activations of each
// operation once. The backward pass reads inputs and gradients, and writes gradients.
struct Needs {
  double bytes = 0, operations = 0;
};

Needs NeedsOf(const models::NetworkGraph& graph, size_t value_size) {
  Needs needs;
  for (const models::Operation& operation : graph.operations()) {
    if (operation.kind == models::OperationKind::kReshape) continue;
    const models::Shape& out = graph.shapes()[operation.output];
    double inputs = 0;
    for (const size_t input : operation.inputs)
      inputs += static_cast<double>(graph.shapes()[input].count());
    const auto outputs = static_cast<double>(out.count());
    needs.bytes += (3 * inputs + 2 * outputs) * static_cast<double>(value_size);
    const models::Shape& in = graph.shapes()[operation.inputs[0]];
    const double window = operation.window.size * operation.window.size * in.channels;
    const bool reads_image = operation.inputs[0] == 0;  // the image needs no gradient
    const double passes = reads_image ? 2 : 3;
    if (operation.kind == models::OperationKind::kConvolution)
      needs.operations += 2 * passes * outputs * window;
    if (operation.kind == models::OperationKind::kDense)
      needs.operations += 2 * passes * outputs * inputs;
  }
  return needs;
}

// Training steps with one batch of made-up images in host memory, as the loops of trainers make
// them.
class Training {
 public:
  Training(Context& job, const Settings& s, const std::string& dtype, uint64_t batch)
      : device_(models::MakeCudaDevice({.index = s.device})),
        network_(models::NetworkByName(s.network)),
        model_(
            network_.input, std::move(network_.layers),
            {.micro_batch = static_cast<int>(batch),
             .micro_batches = 1,
             .seed = 1,
             .dtype = DtypeOf(dtype),
             .device = device_.get()}),
        optimizer_(model_.parameters(), {.learning_rate = 1e-4}, *device_),
        replica_(job.world(), model_, optimizer_),
        images_(batch * model_.inputs()) {
    for (size_t i = 0; i < images_.size(); ++i)
      images_[i] = static_cast<float>((i + 1) * 2654435761u >> 24 & 255) / 255;
    for (uint64_t i = 0; i < batch; ++i)
      labels_.push_back(static_cast<int32_t>(i % model_.classes()));
    batch_.examples = batch_.global_batch = batch;
    batch_.targets.labels = labels_;
    batch_.write_inputs = [this](size_t first, size_t count, float* inputs) {
      std::copy_n(images_.data() + first * model_.inputs(), count * model_.inputs(), inputs);
    };
    SecondsOf(3);  // loads kernels
  }

  double SecondsOf(uint64_t steps) {
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < steps; ++i) models::TrainStep(replica_, batch_, loss_, {});
    device_->Synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Needs needs() { return NeedsOf(model_.graph(), SizeOf(model_.dtype())); }

 private:
  std::unique_ptr<models::ComputeDevice> device_;
  models::Network network_;
  models::Sequential model_;
  models::Adam optimizer_;
  models::Replica replica_;
  models::SparseCategoricalCrossentropy loss_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  models::ReplicaBatch batch_;
};

json MeasureSteps(
    Context& job, const Settings& s, const std::string& dtype, uint64_t batch, const Rates& rates) {
  Training training(job, s, dtype, batch);
  std::vector<double> seconds;
  for (int round = 0; round < s.rounds; ++round) seconds.push_back(training.SecondsOf(s.steps));
  const double per_image = Median(seconds) / static_cast<double>(s.steps * batch);
  const Needs needs = training.needs();
  const double copying = needs.bytes / rates.bytes,
               multiplying = needs.operations / rates.operations;
  return {
      {"what", "step"},
      {"network", s.network},
      {"dtype", dtype},
      {"batch", batch},
      {"images_per_s", 1 / per_image},
      {"bytes_per_image", needs.bytes},
      {"operations_per_image", needs.operations},
      {"ns_per_image", per_image * 1e9},
      {"copy_ns_per_image", copying * 1e9},
      {"matrix_ns_per_image", multiplying * 1e9},
      {"share", std::max(copying, multiplying) / per_image}};
}

json MeasureOptimizer(const gpu::Stream& stream, const Settings& s, double copy_rate) {
  const uint64_t count = s.parameters;
  const gpu::Device& device = stream.device();
  const gpu::DeviceMemory values(device, count * 4), gradients(device, count * 4);
  const gpu::DeviceMemory m(device, count * 4), v(device, count * 4);
  {
    const gpu::DeviceScope scope(device);
    // All values are about 0.01. Square roots of zero would take a separate path.
    for (const gpu::DeviceMemory* each : {&values, &gradients, &m, &v})
      gpu::Fill(each->address(), 0x3C, each->bytes(), stream.get());
    stream.Synchronize();
  }
  const double seconds = MedianSeconds(stream, s.rounds, 20, [&] {
    models::LaunchLayer(
        stream, "adam", {gpu::BlocksFor(count, 256, 1024), 256},
        models::LayerAdamArgs{
            gradients.as<float>(), m.as<float>(), v.as<float>(), values.as<float>(), count, 1e-4f,
            0.1f, 0.001f, 1e-7f, 0});
  });
  // Adam reads values, gradients and two moments, and writes all but the gradients.
  const double bytes = static_cast<double>(count) * 7 * 4;
  return {
      {"what", "optimizer"},
      {"optimizer", "adam"},
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
        "Adam, %llu parameters: %10.1f us, %.3f of the copy's rate\n",
        static_cast<unsigned long long>(row["parameters"].get<uint64_t>()), row["us"].get<double>(),
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
  for (const std::string& dtype : s.dtypes) {
    rates.operations = MatrixRate(stream, s, DtypeOf(dtype));
    std::printf("# products in %s %.4g operations/s\n", dtype.c_str(), rates.operations);
    rows[0]["matrix_operations_per_s_" + dtype] = rates.operations;
    // If a batch does not fit, its row has the error, and the measurement goes on.
    for (const uint64_t batch : s.batches) {
      try {
        add(MeasureSteps(job, s, dtype, batch, rates));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnavailable) throw;
        add(
            {{"what", "step"},
             {"network", s.network},
             {"dtype", dtype},
             {"batch", batch},
             {"error", error.what()}});
      }
    }
  }
  if (std::none_of(
          rows.begin(), rows.end(), [](const json& row) { return row.contains("images_per_s"); }))
    throw Error(
        ErrorCode::kUnavailable, "no batch fits: " + rows.back()["error"].get<std::string>());
  add(MeasureOptimizer(stream, s, rates.bytes));
  return rows;
}

int Run(const Settings& s) {
  std::string error;
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
  options.Add(
      "--network", &s.network, "A, B, C, mlp, resnet18 or resnet50",
      Words{"A", "B", "C", "mlp", "resnet18", "resnet50"});
  options.Add("--dtype", &s.dtypes, "what is computed in", Words{"f32", "bf16", "f16"});
  options.Add("--batch", &s.batches, "examples of a step", Range<uint64_t>{1, most});
  options.Add("--device", &s.device, "number of the GPU", Range<int>{0, 1024});
  options.Add("--steps", &s.steps, "in a row", Range<uint64_t>{1, most});
  options.Add("--rounds", &s.rounds, "of which the median counts", Range<int>{1, 10000});
  options.Add("--copy-bytes", &s.copy_bytes, "of the copy", Range<uint64_t>{1, most});
  options.Add("--matrix", &s.matrix, "edge of the matrices", Range<int>{1, 100000});
  options.Add("--parameters", &s.parameters, "of the optimizer's step", Range<uint64_t>{1, most});
  options.Add("--json", &s.json_file, "write the rows to this file");
  if (const auto status = options.Parse(argc, argv)) return *status;
  return dtrun::bench::Run(s);
}

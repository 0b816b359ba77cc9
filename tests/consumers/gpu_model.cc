// A program that uses the installed training library. It trains a residual network on the device
// that its argument names, as a strategy: "one_device:cuda:0". It prints the losses.
#include <dtrun/dtrun.h>
#include <dtrun/models/gpu/cuda_device.h>
#include <dtrun/models/layers/sequential.h>
#include <dtrun/models/losses/loss.h>
#include <dtrun/models/networks/network.h>
#include <dtrun/models/optim/adam.h>
#include <dtrun/models/train/replica.h>
#include <dtrun/models/train/steps.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

using namespace dtrun::models;

constexpr int kExamples = 4, kClasses = 5;

ReplicaBatch MadeUpBatch(size_t values, const std::vector<int32_t>& labels) {
  ReplicaBatch batch;
  batch.examples = batch.global_batch = labels.size();
  batch.targets.labels = labels;
  batch.write_inputs = [values](size_t first, size_t count, float* inputs) {
    for (size_t i = 0; i < count * values; ++i)
      inputs[i] = std::sin(0.37f * static_cast<float>(first * values + i));
  };
  return batch;
}

void Train(dtrun::Context& job, const char* name) {
  const auto strategy = dtrun::MakeStrategy(job, name);
  Network network = NetworkByName("resnet18", {.classes = kClasses, .image = 8});
  const Shape input = network.input;
  LayerList layers = std::move(network.layers);
  // The CPU, or the GPU that the strategy names.
  const auto device = MakeDevice(*strategy);
  Sequential model(
      input, std::move(layers),
      {.micro_batch = kExamples, .micro_batches = 1, .device = device.get()});
  Adam optimizer(model.parameters(), {}, *device);
  Replica replica(*strategy, model, optimizer);
  const std::vector<int32_t> labels = {0, 1, 2, 3};
  const ReplicaBatch batch = MadeUpBatch(model.inputs(), labels);
  for (int step = 0; step < 3; ++step)
    std::printf("%.3f\n", TrainStep(replica, batch, SparseCategoricalCrossentropy(), {}));
}

}  // namespace

int main(int argc, char** argv) {
  dtrun::Context job = dtrun::Init();
  Train(job, argc > 1 ? argv[1] : "one_device:cpu");
  job.Shutdown();
}

// A program that uses the installed training library. It trains a small network data-parallel on
// all ranks. It prints one line if all results are right.
#include <dtrun/dtrun.h>
#include <dtrun/models/layers/conv2d.h>
#include <dtrun/models/layers/dense.h>
#include <dtrun/models/layers/loss.h>
#include <dtrun/models/layers/sequential.h>
#include <dtrun/models/optim/adam.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using dtrun::models::Sequential;
using dtrun::models::Tally;

constexpr int kExamples = 64;  // of all ranks

// Throws an exception of the library's own type if an expectation is not met.
void Expect(bool met, const std::string& what) {
  if (!met) throw dtrun::Error(dtrun::ErrorCode::kSystem, "expected " + what);
}

// Points of a square. The label says whether a point lies above the diagonal.
void Load(Sequential& model, int first, int count, std::vector<uint8_t>& labels) {
  labels.clear();
  for (int i = 0; i < count; ++i) {
    const float x = static_cast<float>((first + i) % 8) / 8;
    const float y = (static_cast<float>((first + i) / 8) + 0.5f) / 8;
    model.input()[2 * i] = x;
    model.input()[2 * i + 1] = y;
    labels.push_back(y > x ? 1 : 0);
  }
}

Tally TrainStep(Sequential& model, dtrun::DistributedOptimizer& optimizer, int first, int count) {
  std::vector<uint8_t> labels;
  model.PrepareWeights();
  Load(model, first, count, labels);
  dtrun::models::Pass pass;
  pass.training = true;
  model.Forward(pass, count);
  const Tally tally = dtrun::models::SoftmaxCrossEntropy(
      model.output(), labels.data(), labels.size(), model.classes(), 1.0f / kExamples,
      model.output_gradient());
  model.Backward(pass, count, [&](size_t parameter) { optimizer.MarkReady(parameter); });
  optimizer.Step();
  return tally;
}

uint64_t CorrectAfterTraining(dtrun::Communicator& world) {
  const int share = kExamples / world.size();
  Sequential model(
      {1, 1, 2},
      dtrun::models::Layers(
          dtrun::models::Dense(16, dtrun::models::Activation::kRelu), dtrun::models::Dense(2)),
      {.micro_batch = share, .micro_batches = 1, .seed = 1});
  dtrun::models::Adam adam(model.parameters(), {.learning_rate = 0.02});
  dtrun::DistributedOptimizer optimizer(world, adam, {.op = dtrun::ReduceOp::kSum});
  dtrun::BroadcastParameters(world, model.parameters());
  uint64_t correct = 0;
  for (int step = 0; step < 300; ++step)
    correct = TrainStep(model, optimizer, world.rank() * share, share).correct;
  world.AllReduce(dtrun::Buffer(&correct, 1));
  return correct;
}

// Catches an error of the library by its type, and checks the code.
std::string RefusedLayer() {
  try {
    Sequential({1, 1, 2}, dtrun::models::Layers(dtrun::models::Conv2D(4, 9)), {});
  } catch (const dtrun::Error& error) {
    Expect(error.code() == dtrun::ErrorCode::kInvalidArgument, "an invalid argument");
    return error.what();
  }
  return "";
}

}  // namespace

int main() try {
  dtrun::Context job = dtrun::Init();
  Expect(RefusedLayer().find("conv2d") != std::string::npos, "an error that names the layer");
  const uint64_t correct = CorrectAfterTraining(job.world());
  Expect(correct >= kExamples - 4, "a network that has learnt, got " + std::to_string(correct));
  if (job.rank() == 0) std::printf("%d learnt\n", job.size());
  job.Shutdown();
  return 0;
} catch (const dtrun::Error& error) {
  std::fprintf(stderr, "consumer: %s\n", error.what());
  return 1;
}

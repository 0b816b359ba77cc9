// A trainer that continues where it was stopped. docs/guides/checkpoints.md shows parts of it.
//
//   dtrun -np 2 ./checkpoint [FOLDER] [STEPS]

#include <dtrun/dtrun.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

// One step that pulls four weights to 1, with momentum. Returns the loss.
double Step(dtrun::Communicator& world, std::vector<float>& weights, std::vector<float>& momentum) {
  std::vector<float> gradient(weights.size());
  double loss = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    gradient[i] = weights[i] - 1;
    loss += static_cast<double>(gradient[i] * gradient[i]);
  }
  world.AllReduce(dtrun::Buffer(gradient.data(), gradient.size()), dtrun::ReduceOp::kAverage);
  for (size_t i = 0; i < weights.size(); ++i) {
    momentum[i] = 0.5F * momentum[i] + gradient[i];
    weights[i] -= 0.0625F * momentum[i];
  }
  return loss;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "training_checkpoints";
  const uint64_t steps = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 100;
  dtrun::Context job = dtrun::Init();

  std::vector<float> weights(4), momentum(4);
  const std::vector<dtrun::NamedTensor> tensors = {
      {"dense/kernel", dtrun::Buffer(weights.data(), weights.size()), {2, 2}},
      {"momentum/dense/kernel", dtrun::Buffer(momentum.data(), momentum.size()), {2, 2}}};

  dtrun::CheckpointOptions options;
  options.max_to_keep = 2;
  options.best = dtrun::Best::kLowest;
  dtrun::CheckpointManager checkpoints(job.world(), folder, options);

  uint64_t step = 0;
  const dtrun::Loaded loaded = checkpoints.Load(tensors);
  if (loaded.checkpoint) step = loaded.checkpoint->step;
  if (job.rank() == 0) std::printf("begins after step %d\n", static_cast<int>(step));

  int exit_code = 0;
  while (step < steps) {
    const double loss = Step(job.world(), weights, momentum);
    ++step;
    if (step % 10 != 0) continue;
    try {
      dtrun::SaveOptions what;
      what.step = step;
      what.value = loss;
      what.metadata["learning_rate"] = "0.0625";
      checkpoints.StartSave(what, tensors);
    } catch (const dtrun::Error& error) {
      if (job.rank() == 0) std::fprintf(stderr, "%s\n", error.what());
      exit_code = 73;
    }
  }

  try {
    checkpoints.Wait();
  } catch (const dtrun::Error& error) {
    if (job.rank() == 0) std::fprintf(stderr, "%s\n", error.what());
    exit_code = 73;
  }
  job.Shutdown();
  return exit_code;
}

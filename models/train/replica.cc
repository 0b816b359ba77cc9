#include "models/train/replica.h"

#include <algorithm>

#include "models/layers/average_buffers.h"
#include "models/losses/average_loss.h"

namespace dtrun::models {

Targets Chunk::targets(size_t outputs) const {
  Targets part;
  if (!batch->targets.labels.empty()) part.labels = batch->targets.labels.subspan(first, examples);
  if (!batch->targets.values.empty())
    part.values = batch->targets.values.subspan(first * outputs, examples * outputs);
  return part;
}

std::span<const float> Chunk::sample_weights() const {
  return batch->sample_weights.empty() ? batch->sample_weights
                                       : batch->sample_weights.subspan(first, examples);
}

Replica::Replica(
    Communicator& world, Sequential& model, RateOptimizer& optimizer, const ReplicaOptions& options)
    : world_(world),
      model_(model),
      inner_(optimizer),
      optimizer_(world, optimizer, {.op = ReduceOp::kSum}),
      options_(options),
      marked_(model.parameters().size()),
      factors_(static_cast<size_t>(model.chunk())) {
  BroadcastParameters(world, model.parameters(), model.buffers());
  BroadcastOptimizerState(world, optimizer);
}

std::vector<Chunk> Replica::Chunks(const ReplicaBatch& batch) const {
  const auto most = static_cast<size_t>(model_.chunk());
  std::vector<Chunk> chunks;
  for (size_t first = 0; first < batch.examples; first += most)
    chunks.push_back({&batch, first, std::min(most, batch.examples - first)});
  return chunks;
}

Pass Replica::PassOf(const Chunk& chunk, Mode mode) const {
  Pass pass;
  pass.training = mode == Mode::kTraining;
  pass.step = step_;
  pass.first_example = chunk.batch->first_position + static_cast<uint32_t>(chunk.first);
  pass.first = chunk.is_first();
  pass.last = chunk.is_last();
  pass.regularization_scale = 1.0 / world_.size();
  return pass;
}

Outputs Replica::Forward(const Chunk& chunk, Mode mode) {
  if (!prepared_) model_.PrepareWeights();
  prepared_ = true;
  chunk.batch->write_inputs(chunk.first, chunk.examples, model_.input());
  model_.Forward(PassOf(chunk, mode), static_cast<int>(chunk.examples));
  forwards_ = mode == Mode::kTraining;
  return {model_.output(), chunk.examples, model_.classes()};
}

// Inputs of an earlier chunk that lie behind this one's examples get no gradient.
void Replica::Backward(const Chunk& chunk, const Loss& loss) {
  const Outputs outputs{model_.output(), chunk.examples, model_.classes()};
  const std::span<float> factors = std::span(factors_).first(chunk.examples);
  LossFactors(chunk.sample_weights(), chunk.batch->global_batch, factors);
  float* gradient = model_.output_gradient();
  loss.Gradient(outputs, chunk.targets(outputs.width), factors, gradient);
  std::fill(
      gradient + chunk.examples * outputs.width,
      gradient + static_cast<size_t>(model_.chunk()) * outputs.width, 0.0f);
  model_.Backward(
      PassOf(chunk, Mode::kTraining), static_cast<int>(chunk.examples),
      [&](size_t parameter) { MarkReady(parameter); });
  backwards_ = chunk.is_last();
}

void Replica::MarkReady(size_t parameter) {
  if (marked_[parameter]) return;
  marked_[parameter] = true;
  if (options_.overlap) optimizer_.MarkReady(parameter);
}

Pass Replica::EmptyPass() const {
  Pass pass;
  pass.training = true;
  pass.step = step_;
  pass.regularization_scale = 1.0 / world_.size();
  return pass;
}

// The part of a replica without examples: zero. Where layers synchronise, the others wait in them
// for this one's part of their sums.
void Replica::PassNothing() {
  const Pass pass = EmptyPass();
  const OnReady on_ready = [&](size_t parameter) { MarkReady(parameter); };
  if (!model_.synchronizes()) {
    model_.ZeroGradients(pass, on_ready);
    return;
  }
  if (!forwards_) {
    if (!prepared_) model_.PrepareWeights();
    model_.Forward(pass, 0);
  }
  std::fill_n(
      model_.output_gradient(), static_cast<size_t>(model_.chunk()) * model_.classes(), 0.0f);
  model_.Backward(pass, 0, on_ready);
}

void Replica::Apply() {
  if (!backwards_) PassNothing();
  optimizer_.Step();
  ++step_;
  prepared_ = forwards_ = backwards_ = false;
  std::fill(marked_.begin(), marked_.end(), false);
}

// Gradients that are marked belong to the other replicas already, so the rest is marked as it is.
void Replica::Abandon() {
  if (!backwards_ && model_.synchronizes()) PassNothing();
  for (size_t i = marked_.size(); i-- > 0;) MarkReady(i);
  backwards_ = true;
  Apply();
}

void Replica::AverageBuffers() {
  if (model_.buffers().empty() || world_.size() == 1) return;
  models::AverageBuffers(world_, model_.buffers());
  ParametersChanged();
}

}  // namespace dtrun::models

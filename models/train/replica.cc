#include "models/train/replica.h"

#include <dtrun/optimizer.h>

#include <algorithm>
#include <utility>

#include "models/layers/batch_norm.h"
#include "models/losses/loss.h"
#include "models/message_text.h"
#include "models/train/agreement.h"

namespace dtrun::models {
namespace {

void CheckTree(Sequential& model) {
  if (model.device().index() >= 0) {
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            "a deterministic sum of gradients on ", model.device().device().name(),
            ": the sum is computed in host memory; expected CudaDeviceOptions::parameters = "
            "ParameterMemory::kHost"));
  }
  if (model.buffers().empty()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "a deterministic sum of gradients in a network with '", model.buffers()[0].name,
          "': expected no layer that keeps running statistics"));
}

void CheckDeviceOf(const Strategy& strategy, Sequential& model) {
  const Device here = model.device().device();
  const bool in_gpu_memory = model.device().index() >= 0;
  const bool fits = !strategy.parameters_in_host_memory() || !in_gpu_memory;
  if (strategy.device() == here && fits) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "strategy ", strategy.name(), " has this replica on ", strategy.device().name(),
          strategy.parameters_in_host_memory() ? " and its parameters in host memory" : "",
          ", but the network is on ", here.name(), in_gpu_memory ? ", with its parameters" : "",
          "; pass MakeDevice(strategy) as SequentialOptions::device"));
}

// The options for the optimizer's steps.
StrategyOptimizerOptions StepsOf(const ReplicaOptions& options) {
  if (options.adasum && options.tree != nullptr) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "a replica that combines steps by adasum: expected no deterministic sum of gradients");
  }
  StrategyOptimizerOptions steps;
  if (options.adasum) steps.op = ReduceOp::kAdasum;
  return steps;
}

}  // namespace

// With a GradientTree, a replica computes leaf by leaf. The gradients of a leaf's chunks add up in
// the leaf, and the tree adds the leaves. A leaf without examples, as in a smaller last batch, has
// zero gradients. Without a tree, the whole share is one leaf.

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
      is_chief_(world.rank() == 0),
      model_(model),
      inner_(optimizer),
      options_(options) {
  optimizer_ = std::make_unique<MirroredOptimizer>(world, Scaled(), StepsOf(options));
  Begin();
}

Replica::Replica(
    Strategy& strategy, Sequential& model, RateOptimizer& optimizer, const ReplicaOptions& options)
    : world_(strategy.replicas()),
      is_chief_(strategy.is_chief()),
      model_(model),
      inner_(optimizer),
      options_(options) {
  CheckDeviceOf(strategy, model);
  optimizer_ = strategy.Scope().Distribute(Scaled(), StepsOf(options));
  Begin();
}

// The last step may still read the gradients, whose memory belongs to the optimizer. An error of
// the device has no other place to go: it appears again in the next call.
Replica::~Replica() {
  try {
    model_.device().Synchronize();
  } catch (const Error&) {
  }
}

std::vector<NamedBuffer> Replica::BorrowWeights() {
  std::vector<NamedBuffer> weights = optimizer_->BorrowValues();
  weights.insert(weights.end(), model_.buffers().begin(), model_.buffers().end());
  return weight_copies_.Read(model_.device(), weights);
}

void Replica::ReturnWeights() {
  weight_copies_.Write(model_.device());
  optimizer_->ReturnValues();
  ParametersChanged();
}

std::vector<NamedBuffer> Replica::BorrowState() {
  return state_copies_.Read(model_.device(), optimizer_->BorrowState());
}

void Replica::ReturnState() {
  state_copies_.Write(model_.device());
  optimizer_->ReturnState();
}

Optimizer& Replica::Scaled() {
  if (!options_.loss_scale) return inner_;
  scaled_ = std::make_unique<LossScaleOptimizer>(inner_, *options_.loss_scale);
  return *scaled_;
}

void Replica::Begin() {
  marked_.assign(model_.parameters().size(), false);
  factors_.resize(static_cast<size_t>(model_.chunk()));
  if (options_.tree) CheckTree(model_);
  BroadcastBuffers(world_, model_.buffers());
}

std::vector<Chunk> Replica::Chunks(const ReplicaBatch& batch, Mode mode) const {
  std::vector<Chunk> chunks;
  if (!options_.tree || mode == Mode::kInference) {
    AppendChunks({.batch = &batch, .leaf_range = {0, batch.examples}}, chunks);
    return chunks;
  }
  const uint64_t begin = batch.first_position, end = begin + batch.examples;
  const Range mine = PartOf({0, batch.global_batch}, world_.rank(), world_.size());
  if (mine != Range{begin, end}) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "a deterministic sum over rank ", world_.rank(), "'s examples ", begin, " to ", end,
            " of a global batch of ", batch.global_batch, ": expected ", mine.begin, " to ",
            mine.end));
  }
  for (int leaf = 0; leaf < leaf_count(); ++leaf) {
    const Range positions =
        options_.tree->PositionsOf(options_.tree->first_leaf() + leaf, batch.global_batch);
    AppendChunks(
        {.batch = &batch,
         .leaf = leaf,
         .leaf_range = {positions.begin - begin, positions.end - begin}},
        chunks);
  }
  return chunks;
}

void Replica::AppendChunks(Chunk leaf, std::vector<Chunk>& chunks) const {
  const auto most = static_cast<size_t>(model_.chunk());
  const size_t end = leaf.leaf_range.end;
  for (leaf.first = leaf.leaf_range.begin; leaf.first < end; leaf.first += leaf.examples) {
    leaf.examples = std::min(most, end - leaf.first);
    chunks.push_back(leaf);
  }
}

Pass Replica::PassOf(const Chunk& chunk, Mode mode) const {
  Pass pass;
  pass.training = mode == Mode::kTraining;
  pass.step = step();
  pass.first_example = chunk.batch->first_position + static_cast<uint32_t>(chunk.first);
  pass.first = chunk.is_first();
  pass.last = chunk.is_last();
  pass.regularization_scale = RegularizationScale();
  return pass;
}

Outputs Replica::Forward(const Chunk& chunk, Mode mode) {
  const uint64_t version = optimizer_->values_version();
  if (!prepared_ || version != prepared_version_) model_.PrepareWeights();
  prepared_ = true;
  prepared_version_ = version;
  chunk.batch->write_inputs(chunk.first, chunk.examples, model_.input());
  model_.Forward(PassOf(chunk, mode), static_cast<int>(chunk.examples));
  forwards_ = mode == Mode::kTraining;
  return {model_.output(), chunk.examples, model_.classes()};
}

uint64_t Replica::LossExamples(const ReplicaBatch& batch) const {
  return options_.adasum ? batch.examples : batch.global_batch;
}

// The rows behind this chunk's examples have inputs of an earlier chunk. They get zero gradients.
void Replica::Backward(const Chunk& chunk, const Loss& loss) {
  if (chunk.is_first()) BeginLeaf(chunk.leaf);
  const Outputs outputs{model_.output(), chunk.examples, model_.classes()};
  const std::span<float> factors = std::span(factors_).first(chunk.examples);
  LossFactors(chunk.sample_weights(), LossExamples(*chunk.batch), factors);
  if (scaled_)
    for (float& factor : factors) factor *= static_cast<float>(inner_scale());
  float* gradient = model_.output_gradient();
  loss.Gradient(outputs, chunk.targets(outputs.width), factors, gradient);
  std::fill(
      gradient + chunk.examples * outputs.width,
      gradient + static_cast<size_t>(model_.chunk()) * outputs.width, 0.0f);
  model_.Backward(
      PassOf(chunk, Mode::kTraining), static_cast<int>(chunk.examples),
      [&](size_t parameter) { OnComplete(parameter); });
  if (chunk.is_last()) EndLeaf();
}

// Earlier leaves that are not done have no examples.
void Replica::BeginLeaf(int leaf) {
  while (leaves_done_ < leaf) PassNothing();
  if (options_.tree) options_.tree->BeginLeaf(leaf);
}

void Replica::EndLeaf() {
  if (options_.tree) options_.tree->EndLeaf();
  ++leaves_done_;
}

void Replica::OnComplete(size_t parameter) {
  if (marked_[parameter] || !in_last_leaf()) return;
  if (options_.tree) options_.tree->AddEarlierLeaves(parameter);
  MarkReady(parameter);
}

void Replica::MarkReady(size_t parameter) {
  if (marked_[parameter]) return;
  marked_[parameter] = true;
  if (options_.overlap) optimizer_->MarkReady(parameter);
}

Pass Replica::EmptyPass() const {
  Pass pass;
  pass.training = true;
  pass.step = step();
  pass.regularization_scale = RegularizationScale();
  return pass;
}

// Computes a leaf without examples, or the empty share of a replica: its gradients are zero. If
// layers synchronise, the passes run anyway, because the other replicas wait for this replica's
// part of their sums.
void Replica::PassNothing() {
  if (options_.tree) options_.tree->BeginLeaf(leaves_done_);
  const Pass pass = EmptyPass();
  const OnReady on_ready = [&](size_t parameter) { OnComplete(parameter); };
  if (model_.synchronizes()) {
    if (!forwards_) {
      if (!prepared_) model_.PrepareWeights();
      model_.Forward(pass, 0);
    }
    std::fill_n(
        model_.output_gradient(), static_cast<size_t>(model_.chunk()) * model_.classes(), 0.0f);
    model_.Backward(pass, 0, on_ready);
  } else {
    model_.ZeroGradients(pass, on_ready);
  }
  EndLeaf();
}

void Replica::Apply() {
  while (leaves_done_ < leaf_count()) PassNothing();
  optimizer_->Step();
  ++step_;
  prepared_ = forwards_ = false;
  leaves_done_ = 0;
  std::fill(marked_.begin(), marked_.end(), false);
}

// The other replicas may already have the marked gradients. So the remaining gradients are marked
// as they are.
void Replica::Abandon() {
  if (optimizer_->assigned_step()) return;  // the servers do not wait for this worker
  if (options_.tree) options_.tree->AbandonLeaf();
  if (leaves_done_ < leaf_count() && model_.synchronizes()) PassNothing();
  for (size_t i = marked_.size(); i-- > 0;) MarkReady(i);
  leaves_done_ = leaf_count();
  Apply();
}

void Replica::AverageBuffers() {
  if (model_.buffers().empty() || world_.size() == 1) return;
  models::AverageBuffers(world_, model_.buffers());
  ParametersChanged();
}

uint64_t DigestOf(Sequential& model) {
  std::vector<NamedBuffer> weights = model.BorrowWeights();
  weights.resize(model.parameters().size());  // without the network's buffers
  uint64_t digest = kEmptyDigest;
  for (const NamedBuffer& values : weights)
    digest = Digest(values.buffer.data, values.buffer.bytes(), digest);
  return digest;
}

}  // namespace dtrun::models

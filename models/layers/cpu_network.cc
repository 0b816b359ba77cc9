// Forward runs the entries before head_ once per micro-batch, then the other entries once per
// chunk. Backward runs the other entries first, then the entries before head_ once per micro-batch.
// It reports each parameter as soon as its gradient is complete. BuildForward inserts a Reorder
// where two layers disagree on the format or the dtype of a tensor.

#include <dtrun/error.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/compute_device.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/layer_plumbing.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

// A network on the CPU. Between layers, activations have the formats that oneDNN computes fastest.
// Computes on OpenMP threads. SequentialOptions describes micro-batches, chunks and the head.
class CpuNetwork : public PlannedNetwork {
 public:
  explicit CpuNetwork(const NetworkToPlan& network);

  float* input() override { return input_->data; }
  const float* output() const override { return output_->data; }
  float* output_gradient() override { return output_->gradient; }
  void PrepareWeights() override;
  void Forward(const Pass& pass) override;
  void Backward(const Pass& pass, const OnReady& on_ready) override;
  const std::vector<LayerImplementation>& implementations() const override {
    return builder_.implementations();
  }

 private:
  struct Entry {
    PlacedLayer place;
    bool converts = false;  // a conversion of format or dtype, inserted here
    Tensor* output = nullptr;
    bool input_gradient = false;

    Layer& layer() const { return *place.layer; }
  };

  DType DtypeOf(size_t i) const;
  void SayWhatIsRead(size_t reader);
  void BuildForward();
  Tensor* InsertReorder(size_t i, Tensor* input);
  Tensor* BuildEntry(size_t i, Tensor* input);
  void NameEntry(size_t i);
  void BuildBackward();
  void ReleaseGradientOf(size_t i);
  int MicroBatchesOf(int examples) const;
  Pass PassOf(const Pass& chunk, int micro_batch, int micro_batches) const;
  void BackwardEntry(Entry& entry, const Pass& pass, const OnReady& on_ready);

  NetworkToPlan network_;
  Builder builder_;
  DType wanted_dtype_ = DType::kF32;  // of the layer that reads the current tensor
  std::vector<std::unique_ptr<Layer>> conversions_;
  std::vector<Entry> entries_;
  size_t head_ = 0;  // number of entries that take micro-batches
  Tensor *input_ = nullptr, *output_ = nullptr;
};

CpuNetwork::CpuNetwork(const NetworkToPlan& network)
    : network_(network), builder_(network.micro_batch, network.micro_batches, network.seed) {
  builder_.communicator = network.communicator;
  for (const PlacedLayer& layer : network.layers) entries_.push_back({layer});
  BuildForward();
  BuildBackward();
  builder_.PlaceScratch();
}

// The dtype that entry `i` computes in. The last layer computes in f32, because its output is
// public. A conversion has the dtype of the layer behind it.
DType CpuNetwork::DtypeOf(size_t i) const {
  while (i < entries_.size() && entries_[i].converts) ++i;
  const bool can = i + 1 < entries_.size() && entries_[i].layer().computes_in_bf16();
  return can ? network_.dtype : DType::kF32;
}

// Tells the builder how the layers from `reader` on read the tensor before them. Layers that work
// in place also read the tensor. The first layer that does not work in place decides the format.
void CpuNetwork::SayWhatIsRead(size_t reader) {
  builder_.output_kept = reader >= head_;
  wanted_dtype_ = DtypeOf(reader);
  for (; reader < entries_.size(); ++reader) {
    const Layer& layer = entries_[reader].layer();
    builder_.output_kept |= layer.keeps_input();
    builder_.plain_output = layer.needs_plain_input();
    if (!layer.in_place()) return;
  }
  builder_.plain_output = true;
  builder_.output_kept = true;
}

void CpuNetwork::BuildForward() {
  const auto takes_chunks = [](const Entry& entry) {
    return entry.layer().needs_plain_input() || entry.layer().takes_chunks();
  };
  while (head_ < entries_.size() && !takes_chunks(entries_[head_])) ++head_;
  SayWhatIsRead(0);
  builder_.output_kept = true;
  builder_.by_micro_batch = head_ > 0;
  Tensor* tensor = builder_.NewTensor(network_.input, network_.input.channels, false);
  input_ = tensor;
  const size_t layer_count = entries_.size();
  for (size_t i = 0, layer = 0; layer < layer_count; ++i, ++layer) {
    if (tensor->dtype != wanted_dtype_ || (builder_.plain_output && !tensor->plain()))
      tensor = InsertReorder(i++, tensor);
    builder_.layer_index = static_cast<uint32_t>(layer);
    tensor = BuildEntry(i, tensor);
  }
  if (!tensor->plain()) tensor = InsertReorder(entries_.size(), tensor);
  output_ = tensor;
}

// Inserts a Reorder before entry `i`. The Reorder takes micro-batches if its input is made or read
// by micro-batch.
Tensor* CpuNetwork::InsertReorder(size_t i, Tensor* input) {
  conversions_.push_back(std::make_unique<Reorder>());
  const Entry entry{.place = {conversions_.back().get()}, .converts = true};
  entries_.insert(entries_.begin() + static_cast<ptrdiff_t>(i), entry);
  if (i <= head_ && head_ > 0) ++head_;
  return BuildEntry(i, input);
}

Tensor* CpuNetwork::BuildEntry(size_t i, Tensor* input) {
  builder_.by_micro_batch = i < head_;
  builder_.dtype = DtypeOf(i);
  NameEntry(i);
  builder_.input_gradient = std::any_of(
      entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(i),
      [](const Entry& entry) { return entry.place.parameter_count > 0; });
  builder_.parameters = network_.parameters->data() + entries_[i].place.first_parameter;
  builder_.buffers = network_.buffers->data() + entries_[i].place.first_buffer;
  SayWhatIsRead(i + 1);
  try {
    return entries_[i].output = entries_[i].layer().BuildForward(builder_, input);
  } catch (const Error& error) {
    throw Error(error.code(), Text(builder_.layer_name, " ", error.what()));
  }
}

// Names an entry by its index in the user's list. A conversion gets the index of the layer that
// reads it.
void CpuNetwork::NameEntry(size_t i) {
  size_t index = 0;
  for (size_t before = 0; before < i; ++before) index += !entries_[before].converts;
  builder_.layer_name = Text("layer ", index, " (", entries_[i].layer().description(), ")");
}

// A layer needs the gradient of its input if a layer before has parameters.
void CpuNetwork::BuildBackward() {
  builder_.by_micro_batch = false;
  builder_.GiveGradient(output_);
  size_t first_trained = 0;
  while (first_trained < entries_.size() && entries_[first_trained].place.parameter_count == 0)
    ++first_trained;
  for (size_t i = entries_.size(); i-- > first_trained;) {
    entries_[i].input_gradient = i > first_trained;
    builder_.by_micro_batch = i < head_;
    NameEntry(i);
    entries_[i].layer().BuildBackward(builder_, entries_[i].input_gradient);
    ReleaseGradientOf(i);
  }
}

// Releases the gradient of a tensor after the backward pass of the layer that made it, unless the
// layer works in place. The gradient of the network's output belongs to the loss.
void CpuNetwork::ReleaseGradientOf(size_t i) {
  const Tensor &input = i > 0 ? *entries_[i - 1].output : *input_, &output = *entries_[i].output;
  if (output.gradient != input.gradient && output.gradient != output_->gradient)
    builder_.ReleaseGradient(output);
}

void CpuNetwork::PrepareWeights() {
  for (Entry& entry : entries_) entry.layer().PrepareWeights();
}

int CpuNetwork::MicroBatchesOf(int examples) const {
  return (std::max(examples, 1) + builder_.micro_batch() - 1) / builder_.micro_batch();
}

Pass CpuNetwork::PassOf(const Pass& chunk, int micro_batch, int micro_batches) const {
  Pass pass = chunk;
  const int done = micro_batch * builder_.micro_batch();
  pass.examples = std::min(builder_.micro_batch(), chunk.examples - done);
  pass.first_example += static_cast<uint32_t>(done);
  pass.first = chunk.first && micro_batch == 0;
  pass.last = chunk.last && micro_batch + 1 == micro_batches;
  return pass;
}

// The layers before head_ take micro-batches, the others take the chunk.
void CpuNetwork::Forward(const Pass& pass) {
  const int micro_batches = head_ > 0 ? MicroBatchesOf(pass.examples) : 0;
  for (int m = 0; m < micro_batches; ++m) {
    builder_.Select(m);
    const Pass part = PassOf(pass, m, micro_batches);
    for (size_t i = 0; i < head_; ++i) entries_[i].layer().Forward(part);
  }
  builder_.Select(0);
  for (size_t i = head_; i < entries_.size(); ++i) entries_[i].layer().Forward(pass);
}

void CpuNetwork::Backward(const Pass& pass, const OnReady& on_ready) {
  if (output_->relu)
    MaskByRelu(output_->data, size_t(pass.examples) * output_->stride(), output_->gradient);
  for (size_t i = entries_.size(); i-- > head_;) BackwardEntry(entries_[i], pass, on_ready);
  const int micro_batches = head_ > 0 ? MicroBatchesOf(pass.examples) : 0;
  for (int m = 0; m < micro_batches; ++m) {
    builder_.Select(m);
    const Pass part = PassOf(pass, m, micro_batches);
    for (size_t i = head_; i-- > 0;) BackwardEntry(entries_[i], part, on_ready);
  }
  builder_.Select(0);
}

void CpuNetwork::BackwardEntry(Entry& entry, const Pass& pass, const OnReady& on_ready) {
  if (entry.place.parameter_count > 0) {
    entry.layer().BackwardWeights(pass);
    for (size_t p = entry.place.parameter_count; pass.last && p-- > 0;)
      on_ready(entry.place.first_parameter + p);
  }
  if (entry.input_gradient) entry.layer().BackwardData(pass);
}

class CpuDevice : public ComputeDevice {
 public:
  Device device() const override { return {}; }

  DType DtypeFor(DType wanted) const override {
    if (wanted != DType::kF32 && wanted != DType::kBF16) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("a network computes in f32 or bf16, got ", NameOf(wanted)));
    }
    return wanted == DType::kBF16 && HasBf16() ? DType::kBF16 : DType::kF32;
  }

  std::unique_ptr<PlannedNetwork> Plan(const NetworkToPlan& network) override {
    return std::make_unique<CpuNetwork>(network);
  }

  void Synchronize() override {}

  void AddScaled(const Buffer& from, float factor, const Buffer& to) override {
    models::AddScaled(Floats(from), from.count, factor, Floats(to));
  }
};

}  // namespace

std::unique_ptr<ComputeDevice> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

// Without state, so all networks share it.
ComputeDevice& Cpu() {
  static CpuDevice cpu;
  return cpu;
}

}  // namespace dtrun::models

#include "models/layers/residual.h"

#include <dtrun/error.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/layer.h"
#include "models/layers/layer_plumbing.h"
#include "models/layers/network_graph.h"
#include "models/layers/registry.h"
#include "models/message_text.h"

namespace dtrun::models {

// The shortcut's layers have random numbers of their own.
constexpr uint32_t kShortcutIndex = 0x8000;

/// Layers in sequence inside a composite layer, such as a residual block, which forwards its own
/// calls to the Path. The layers take whole chunks. May be empty. Not thread-safe.
class Path {
 public:
  /// `name`, for example "main", is the prefix of parameter names and errors.
  Path(std::string name, std::vector<std::unique_ptr<Layer>> layers);

  bool empty() const { return entries_.empty(); }
  /// "conv2d 64 1x1, batch_norm relu"
  std::string description() const;
  std::vector<LayerConfig> configs() const;
  /// Throws Error kInvalidArgument, with the name of the layer, if a layer cannot follow the layer
  /// before it. Also throws if the first or the last layer works in place, because other layers
  /// read these tensors.
  Shape OutputShape(const Shape& input) const;
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const;
  std::vector<ParameterSpec> BufferSpecs(const Shape& input) const;
  bool needs_whole_share() const;
  bool synchronizes() const;

  /// Describes the layers, which get the random numbers of BuildForward.
  size_t Describe(NetworkGraph& graph, size_t input) const;
  /// Takes the first parameters and buffers of the builder, and moves the builder's pointers behind
  /// them.
  Tensor* BuildForward(Builder& builder, Tensor* input);
  /// The caller has given the output memory for its gradient, and owns the memory.
  void BuildBackward(Builder& builder, bool input_gradient);
  /// Calls Layer::TakeSum of the last layer.
  bool TakeSum(const Tensor& term, bool relu);
  void PrepareWeights();
  void Forward(const Pass& pass);
  void Backward(const Pass& pass);

 private:
  struct Entry {
    std::unique_ptr<Layer> layer;
    bool converts = false;  // a Reorder, inserted here
    size_t parameter_count = 0;
    bool input_gradient = false;
    Tensor *input = nullptr, *output = nullptr;
  };

  template <typename Visit>
  Shape Walk(const Shape& input, const Visit& visit) const;
  std::string NameOf(const std::string& outer, size_t i) const;
  uint32_t IndexOf(uint32_t outer, size_t i) const;
  Tensor* BuildEntry(Builder& builder, size_t i, Tensor* input);

  std::string name_;
  std::vector<Entry> entries_;
};

// Forward adds the outputs of the two paths. Each path reads the input through its own view, and
// writes its own input gradient. Return adds the two gradients and applies the ReLU of the input.
//
// The sum overwrites the main path's output, with two exceptions. If this output has a ReLU, its
// backward pass needs the output. If this output is a view of the input, other layers read it. If
// the sum overwrites the output, the last layer of the main path also computes the sum, provided
// that it can (TakeSum). A normalisation computes the sum in the pass that writes its output.
//
// The gradient of the sum is also the gradient of both outputs. The main path needs a copy if the
// sum has separate memory. The shortcut needs a copy if its output has a ReLU or another format.
struct Residual::Impl {
  Path main, shortcut;
  bool relu;

  int batch = 0;
  bool input_gradient = false, has_parameters = false;
  Tensor *input = nullptr, *output = nullptr;
  Tensor main_input = {}, shortcut_input = {};  // views of the input without its ReLU
  Tensor *main_output = nullptr, *shortcut_output = nullptr;
  Tensor shortcut_term = {};  // the shortcut's output in the format of the sum
  bool main_sums = false;     // the last layer of the main path adds the term
  Tensor returned = {};       // the shortcut's input gradient in the input's format

  static bool SameFormat(const Tensor& a, const Tensor& b) { return a.block == b.block; }

  template <typename Body>
  void ForEachExampleOf(const Tensor& tensor, const Body& body) const {
    const size_t stride = tensor.stride();
    ForEachExample(batch, [&](size_t i) { body(i * stride, stride); });
  }

  void Convert(const Tensor& from, const float* x, const Tensor& to, float* y) const {
    ForEachExample(batch, [&](size_t i) {
      ConvertFormat(from, x + i * from.stride(), to, y + i * to.stride());
    });
  }

  void BuildSum(Builder& builder) {
    output = main_output;
    if (main_output->relu || main_output->shared) {
      output = builder.NewTensor(main_output->shape, main_output->block, relu);
    }
    output->relu = relu;
    shortcut_term = *shortcut_output;
    if (!SameFormat(*shortcut_output, *output)) {
      shortcut_term.block = output->block;
      shortcut_term.data = builder.NewFloats(size_t(batch) * shortcut_term.stride());
    }
    main_sums = output == main_output && main.TakeSum(shortcut_term, relu);
  }

  void MakeTerm() {
    if (shortcut_term.data != shortcut_output->data)
      Convert(*shortcut_output, shortcut_output->data, shortcut_term, shortcut_term.data);
  }

  void Sum() {
    ForEachExampleOf(*output, [&](size_t at, size_t count) {
      AddTwo(main_output->data + at, shortcut_term.data + at, count, relu, output->data + at);
    });
  }

  void BuildGradientsOfSum(Builder& builder) {
    if (main_output != output) builder.GiveGradient(main_output);
    if (shortcut.empty()) {
      shortcut_input.gradient = output->gradient;
    } else if (shortcut_output->relu || !SameFormat(*shortcut_output, *output)) {
      builder.GiveGradient(shortcut_output);
    } else {
      shortcut_output->gradient = output->gradient;
    }
  }

  void CopyGradient(Tensor& to) const {
    if (to.gradient == output->gradient) return;
    Convert(*output, output->gradient, to, to.gradient);
    if (!to.relu) return;
    ForEachExampleOf(
        to, [&](size_t at, size_t n) { MaskByRelu(to.data + at, n, to.gradient + at); });
  }

  // Prepares Return, which adds the gradients of the two views of the input.
  void BuildReturn(Builder& builder) {
    returned = shortcut_input;
    if (!shortcut.empty() || SameFormat(*output, *input)) return;
    returned.block = input->block;
    returned.gradient = nullptr;
    builder.GiveGradient(&returned);
  }

  void Return() {
    if (shortcut.empty() && !SameFormat(*output, *input))
      Convert(*output, output->gradient, returned, returned.gradient);
    ForEachExampleOf(*input, [&](size_t at, size_t count) {
      AddMasked(
          returned.gradient + at, input->relu ? input->data + at : nullptr, count,
          input->gradient + at);
    });
  }

  void Backward(const Pass& pass) {
    CopyGradient(*main_output);
    if (!shortcut.empty()) CopyGradient(*shortcut_output);
    main.Backward(pass);
    shortcut.Backward(pass);
    if (input_gradient) Return();
  }
};

Residual::Residual(
    std::vector<std::unique_ptr<Layer>> main, std::vector<std::unique_ptr<Layer>> shortcut,
    Activation activation)
    : impl_(new Impl{
          Path("main", std::move(main)), Path("shortcut", std::move(shortcut)),
          activation == Activation::kRelu}) {}
Residual::~Residual() = default;
Residual::Residual(Residual&&) noexcept = default;

std::string Residual::description() const {
  return Text(
      "residual [", impl_->main.description(), "] + [",
      impl_->shortcut.empty() ? "input" : impl_->shortcut.description(), "]",
      impl_->relu ? " relu" : "");
}

LayerSettings Residual::settings() const {
  return LayerSettings()
      .Set("main", impl_->main.configs())
      .Set("shortcut", impl_->shortcut.configs())
      .Set("activation", impl_->relu ? "relu" : "linear");
}

Shape Residual::OutputShape(const Shape& input) const {
  if (impl_->main.empty())
    throw Error(ErrorCode::kInvalidArgument, "needs at least one layer in its main path");
  const Shape main = impl_->main.OutputShape(input), side = impl_->shortcut.OutputShape(input);
  if (main == side) return main;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "needs paths with equal outputs, got ", ToString(main), " from the main path and ",
          ToString(side), " from the shortcut"));
}

std::vector<ParameterSpec> Residual::ParameterSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs = impl_->main.ParameterSpecs(input);
  for (ParameterSpec& spec : impl_->shortcut.ParameterSpecs(input)) specs.push_back(spec);
  return specs;
}

std::vector<ParameterSpec> Residual::BufferSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs = impl_->main.BufferSpecs(input);
  for (ParameterSpec& spec : impl_->shortcut.BufferSpecs(input)) specs.push_back(spec);
  return specs;
}

bool Residual::needs_whole_share() const {
  return impl_->main.needs_whole_share() || impl_->shortcut.needs_whole_share();
}

bool Residual::synchronizes() const {
  return impl_->main.synchronizes() || impl_->shortcut.synchronizes();
}

size_t Residual::Describe(NetworkGraph& graph, size_t input) const {
  const size_t main = impl_->main.Describe(graph, input);
  graph.layer_index += kShortcutIndex;
  const size_t shortcut = impl_->shortcut.Describe(graph, input);
  graph.layer_index -= kShortcutIndex;
  const size_t sum =
      graph.Add({.kind = OperationKind::kAdd, .inputs = {main, shortcut}}, graph.shapes()[main]);
  return graph.AddActivation(sum, impl_->relu ? Activation::kRelu : Activation::kNone);
}

Tensor* Residual::BuildForward(Builder& builder, Tensor* input) {
  impl_->batch = builder.batch();
  impl_->has_parameters = !ParameterSpecs(input->shape).empty();
  impl_->input = input;
  impl_->main_input = *input;
  impl_->main_input.relu = false;
  impl_->main_input.shared = true;
  impl_->main_input.step = 0;
  impl_->shortcut_input = impl_->main_input;
  impl_->main_output = impl_->main.BuildForward(builder, &impl_->main_input);
  const uint32_t index = builder.layer_index;
  builder.layer_index += kShortcutIndex;
  impl_->shortcut_output = impl_->shortcut.BuildForward(builder, &impl_->shortcut_input);
  builder.layer_index = index;
  impl_->BuildSum(builder);
  return impl_->output;
}

// Releases memory in the order in which the backward pass finishes with it.
void Residual::BuildBackward(Builder& builder, bool input_gradient) {
  Impl& impl = *impl_;
  impl.input_gradient = input_gradient;
  if (input_gradient) {
    builder.GiveGradient(impl.input);
    impl.main_input.gradient = impl.input->gradient;
  }
  impl.BuildGradientsOfSum(builder);
  impl.main.BuildBackward(builder, input_gradient);
  impl.shortcut.BuildBackward(builder, input_gradient);
  if (input_gradient) impl.BuildReturn(builder);
  if (impl.main_output != impl.output) builder.ReleaseGradient(*impl.main_output);
  if (impl.shortcut.empty()) {
    if (impl.returned.gradient != impl.output->gradient) builder.ReleaseGradient(impl.returned);
    return;
  }
  if (impl.shortcut_output->gradient != impl.output->gradient)
    builder.ReleaseGradient(*impl.shortcut_output);
  builder.ReleaseGradient(impl.shortcut_input);
}

void Residual::PrepareWeights() {
  impl_->main.PrepareWeights();
  impl_->shortcut.PrepareWeights();
}

void Residual::Forward(const Pass& pass) {
  impl_->shortcut.Forward(pass);
  impl_->MakeTerm();
  impl_->main.Forward(pass);
  if (!impl_->main_sums) impl_->Sum();
}

// Sequential calls BackwardWeights only for layers with parameters, and BackwardData only if the
// input gradient is read. The first of the two calls runs the whole backward pass.
void Residual::BackwardWeights(const Pass& pass) { impl_->Backward(pass); }

void Residual::BackwardData(const Pass& pass) {
  if (!impl_->has_parameters) impl_->Backward(pass);
}

Path::Path(std::string name, std::vector<std::unique_ptr<Layer>> layers) : name_(std::move(name)) {
  for (std::unique_ptr<Layer>& layer : layers) entries_.push_back({std::move(layer)});
}

std::string Path::description() const {
  std::string text;
  for (const Entry& entry : entries_)
    text += Text(text.empty() ? "" : ", ", entry.layer->description());
  return text;
}

std::vector<LayerConfig> Path::configs() const {
  std::vector<LayerConfig> configs;
  for (const Entry& entry : entries_) configs.push_back(ConfigOf(*entry.layer));
  return configs;
}

// Calls visit(index, layer, its input) for each layer, and returns the shape of the output.
template <typename Visit>
Shape Path::Walk(const Shape& input, const Visit& visit) const {
  Shape shape = input;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Layer& layer = *entries_[i].layer;
    try {
      const Shape output = layer.OutputShape(shape);
      visit(i, layer, shape);
      shape = output;
    } catch (const Error& error) {
      throw Error(error.code(), Text(name_, " ", i, " (", layer.description(), ") ", error.what()));
    }
  }
  return shape;
}

Shape Path::OutputShape(const Shape& input) const {
  return Walk(input, [&](size_t i, const Layer& layer, const Shape&) {
    if (layer.in_place() && (i == 0 || i + 1 == entries_.size())) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "works in place, expected a layer that does not work in place as the first and the last "
          "layer of a path");
    }
  });
}

std::vector<ParameterSpec> Path::ParameterSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs;
  Walk(input, [&](size_t i, const Layer& layer, const Shape& shape) {
    for (ParameterSpec& spec : layer.ParameterSpecs(shape)) {
      spec.name = Text(name_, i, ".", layer.kind(), ".", spec.name);
      specs.push_back(std::move(spec));
    }
  });
  return specs;
}

std::vector<ParameterSpec> Path::BufferSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs;
  Walk(input, [&](size_t i, const Layer& layer, const Shape& shape) {
    for (ParameterSpec& spec : layer.BufferSpecs(shape)) {
      spec.name = Text(name_, i, ".", layer.kind(), ".", spec.name);
      specs.push_back(std::move(spec));
    }
  });
  return specs;
}

bool Path::needs_whole_share() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.layer->needs_whole_share();
  });
}

bool Path::synchronizes() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.layer->synchronizes();
  });
}

// If a layer needs the plain format and its input has another format, inserts a Reorder before it.
Tensor* Path::BuildForward(Builder& builder, Tensor* input) {
  const uint32_t outer = builder.layer_index;
  const bool plain_output = builder.plain_output, output_kept = builder.output_kept;
  const bool input_gradient = builder.input_gradient;
  const std::string layer_name = builder.layer_name;
  builder.output_kept = true;
  for (size_t i = 0; i < entries_.size(); ++i) {
    builder.layer_index = IndexOf(outer, i);
    if (entries_[i].layer->needs_plain_input() && !input->plain()) {
      Entry reorder{std::make_unique<Reorder>(), true};
      entries_.insert(entries_.begin() + static_cast<ptrdiff_t>(i), std::move(reorder));
    }
    builder.layer_name = NameOf(layer_name, i);
    input = BuildEntry(builder, i, input);
    builder.input_gradient |= entries_[i].parameter_count > 0;
  }
  builder.layer_index = outer;
  builder.input_gradient = input_gradient;
  builder.layer_name = layer_name;
  builder.plain_output = plain_output;
  builder.output_kept = output_kept;
  return input;
}

// Returns an index that no other layer has. Therefore the random numbers also differ from all other
// layers. Conversions do not count: whether there are any depends on the CPU.
uint32_t Path::IndexOf(uint32_t outer, size_t i) const {
  uint32_t index = 0;
  for (size_t before = 0; before < i; ++before) index += !entries_[before].converts;
  return 0x800000 | ((outer * 64 + index) & 0x7fffff);
}

size_t Path::Describe(NetworkGraph& graph, size_t input) const {
  const uint32_t outer = graph.layer_index;
  const std::string layer_name = graph.layer_name;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].converts) continue;
    graph.layer_index = IndexOf(outer, i);
    graph.layer_name = NameOf(layer_name, i);
    input = entries_[i].layer->Describe(graph, input);
  }
  graph.layer_index = outer;
  graph.layer_name = layer_name;
  return input;
}

Tensor* Path::BuildEntry(Builder& builder, size_t i, Tensor* input) {
  Entry& entry = entries_[i];
  builder.plain_output = i + 1 < entries_.size() && entries_[i + 1].layer->needs_plain_input();
  entry.input = input;
  entry.parameter_count = entry.layer->ParameterSpecs(input->shape).size();
  dtrun::Parameter* const behind = builder.parameters + entry.parameter_count;
  dtrun::NamedBuffer* const buffers_behind =
      builder.buffers + entry.layer->BufferSpecs(input->shape).size();
  entry.output = entry.layer->BuildForward(builder, input);
  builder.parameters = behind;
  builder.buffers = buffers_behind;
  return entry.output;
}

// A layer needs the gradient of its input if a layer before has parameters, or if `input_gradient`.
void Path::BuildBackward(Builder& builder, bool input_gradient) {
  const std::string layer_name = builder.layer_name;
  size_t first = 0;
  if (!input_gradient) {
    while (first < entries_.size() && entries_[first].parameter_count == 0) ++first;
  }
  for (size_t i = entries_.size(); i-- > first;) {
    Entry& entry = entries_[i];
    entry.input_gradient = input_gradient || i > first;
    builder.layer_name = NameOf(layer_name, i);
    entry.layer->BuildBackward(builder, entry.input_gradient);
    if (i + 1 < entries_.size() && entry.output->gradient != entry.input->gradient)
      builder.ReleaseGradient(*entry.output);
  }
  builder.layer_name = layer_name;
}

std::string Path::NameOf(const std::string& outer, size_t i) const {
  return Text(outer, ", ", name_, " ", i, " (", entries_[i].layer->description(), ")");
}

bool Path::TakeSum(const Tensor& term, bool relu) {
  return entries_.back().layer->TakeSum(term, relu);
}

void Path::PrepareWeights() {
  for (Entry& entry : entries_) entry.layer->PrepareWeights();
}

void Path::Forward(const Pass& pass) {
  for (Entry& entry : entries_) entry.layer->Forward(pass);
}

void Path::Backward(const Pass& pass) {
  for (size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    if (entry.parameter_count > 0) entry.layer->BackwardWeights(pass);
    if (entry.input_gradient) entry.layer->BackwardData(pass);
  }
}

}  // namespace dtrun::models

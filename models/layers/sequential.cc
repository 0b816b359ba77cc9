// The constructor fixes the shapes of all layers, gives the parameters and buffers memory of the
// device with their initial values, and lets the device plan the network.

#include "models/layers/sequential.h"

#include <dtrun/error.h>
#include <dtrun/sliceable_optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "models/layers/cpu_kernels.h"
#include "models/layers/layer.h"
#include "models/layers/layer_plumbing.h"
#include "models/message_text.h"
#include "models/random/philox.h"

namespace dtrun::models {

/// Writes the initial value of parameter `index` of the network (see ParameterSpec). A pure
/// function of its arguments.
void WriteInitialWeights(const ParameterSpec& spec, uint64_t seed, uint32_t index, float* value);

Sequential::Sequential(const Shape& input, LayerList layers, const SequentialOptions& options)
    : input_shape_(input),
      owned_layers_(std::move(layers)),
      options_(options),
      device_(options.device == nullptr ? Cpu() : *options.device),
      chunk_(options.micro_batch * options.micro_batches),
      dtype_(device_.DtypeFor(options.dtype)) {
  for (const std::unique_ptr<Layer>& layer : owned_layers_) layers_.push_back(layer.get());
  const std::vector<LayerSpecs> specs = FixShapes();
  MakeParameters(specs);
  MakeBuffers(specs);
  if (options.communicator != nullptr && synchronizes())
    communicator_.emplace(options.communicator->Duplicate());
  network_ = device_.Plan(Described());
}

std::vector<Sequential::LayerSpecs> Sequential::FixShapes() {
  std::vector<LayerSpecs> specs;
  Shape shape = input_shape_;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = *layers_[i];
    try {
      const Shape output = layer.OutputShape(shape);
      specs.push_back({layer.ParameterSpecs(shape), layer.BufferSpecs(shape)});
      shape = output;
    } catch (const Error& error) {
      throw Error(error.code(), Text("layer ", i, " (", layer.description(), ") ", error.what()));
    }
  }
  output_shape_ = shape;
  return specs;
}

std::string Sequential::ParameterName(size_t i, const ParameterSpec& spec) const {
  return Text("layer", i, ".", layers_[i]->kind(), ".", spec.name);
}

void Sequential::MakeParameters(const std::vector<LayerSpecs>& specs) {
  for (const LayerSpecs& layer : specs)
    for (const ParameterSpec& spec : layer.parameters) value_count_ += spec.count();
  const Buffer values = device_.Allocate(value_count_, DType::kF32, values_);
  std::vector<float> initial(value_count_);
  size_t at = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    places_.push_back({owned_layers_[i].get(), parameters_.size(), specs[i].parameters.size()});
    for (const ParameterSpec& spec : specs[i].parameters) {
      const auto index = static_cast<uint32_t>(parameters_.size());
      WriteInitialWeights(spec, options_.seed, index, initial.data() + at);
      Buffer gradient = values.Slice(at, spec.count());
      gradient.data = nullptr;
      parameters_.push_back({ParameterName(i, spec), values.Slice(at, spec.count()), gradient});
      l2_.push_back(spec.l2);
      has_penalty_ |= spec.l2 != 0;
      parameter_shapes_.push_back(spec.shape);
      at += spec.count();
    }
  }
  device_.Copy(Buffer(initial.data(), initial.size()), values);
}

void Sequential::MakeBuffers(const std::vector<LayerSpecs>& specs) {
  std::vector<float> initial;
  for (const LayerSpecs& layer : specs)
    for (const ParameterSpec& spec : layer.buffers)
      initial.insert(initial.end(), spec.count(), spec.value);
  const Buffer values = device_.Allocate(initial.size(), DType::kF32, buffer_values_);
  device_.Copy(Buffer(initial.data(), initial.size()), values);
  size_t at = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    places_[i].first_buffer = buffers_.size();
    for (const ParameterSpec& spec : specs[i].buffers) {
      buffers_.push_back({ParameterName(i, spec), values.Slice(at, spec.count())});
      at += spec.count();
    }
  }
}

std::vector<NamedBuffer> Sequential::BorrowWeights() {
  std::vector<NamedBuffer> weights;
  for (const Parameter& parameter : parameters_)
    weights.push_back({parameter.name, parameter.value});
  weights.insert(weights.end(), buffers_.begin(), buffers_.end());
  return host_copies_.Read(device_, weights);
}

NetworkToPlan Sequential::Described() {
  NetworkToPlan network;
  network.input = input_shape_;
  network.layers = places_;
  network.parameters = &parameters_;
  network.buffers = &buffers_;
  network.micro_batch = options_.micro_batch;
  network.micro_batches = options_.micro_batches;
  network.seed = options_.seed;
  network.dtype = dtype_;
  network.communicator = communicator_ ? &*communicator_ : nullptr;
  return network;
}

bool Sequential::synchronizes() const {
  return std::any_of(
      layers_.begin(), layers_.end(), [](const Layer* layer) { return layer->synchronizes(); });
}

void Sequential::CheckWholeShare(const Pass& pass) const {
  if (!pass.training || (pass.first && pass.last)) return;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i]->needs_whole_share()) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "layer ", i, " (", layers_[i]->description(),
            ") needs all examples of a rank's share in one pass, got a part of them: the model "
            "has room for micro_batch ",
            options_.micro_batch, " * micro_batches ", options_.micro_batches, " = ", chunk()));
  }
}

double Sequential::RegularizationLoss() const {
  double loss = 0;
  for (size_t i = 0; has_penalty_ && i < parameters_.size(); ++i) {
    if (l2_[i] == 0) continue;
    const Buffer& value = parameters_[i].value;
    loss += l2_[i] * (value.device < 0 ? SumOfSquares(Floats(value), value.count)
                                       : detail::SquaredNorms({value})[0]);
  }
  return loss;
}

void Sequential::AddRegularization(const Pass& pass, size_t i) {
  const auto factor = static_cast<float>(2 * l2_[i] * pass.regularization_scale);
  if (factor != 0) device_.AddScaled(parameters_[i].value, factor, parameters_[i].gradient);
}

std::string Sequential::description() const {
  std::string text;
  for (const Layer* layer : layers_) text += Text(text.empty() ? "" : ", ", layer->description());
  return text;
}

void Sequential::Forward(const Pass& chunk, int examples) {
  CheckWholeShare(chunk);
  Pass pass = chunk;
  pass.examples = examples;
  network_->Forward(pass);
}

void Sequential::Backward(const Pass& chunk, int examples, const OnReady& on_ready) {
  Pass pass = chunk;
  pass.examples = examples;
  if (!has_penalty_) return network_->Backward(pass, on_ready);
  network_->Backward(pass, [&](size_t parameter) {
    AddRegularization(pass, parameter);
    on_ready(parameter);
  });
}

void Sequential::ZeroGradients(const Pass& pass, const OnReady& on_ready) {
  for (size_t i = parameters_.size(); i-- > 0;) {
    Clear(parameters_[i].gradient);
    AddRegularization(pass, i);
    on_ready(i);
  }
}

namespace {

// Uniform in (-1, 1) and symmetric. Uses the upper 24 bits, the precision of a float.
float SymmetricUniform(uint32_t word) {
  return (static_cast<float>(word >> 8) + 0.5f) * 0x1p-23f - 1.0f;
}

// Normal numbers in pairs: G. E. P. Box, M. E. Muller, Annals of Mathematical Statistics 29 (1958).
void WriteNormal(double deviation, PhiloxKey key, uint32_t domain, size_t count, float* value) {
  PhiloxCounter counter{0, 0, 0, domain};
  for (size_t i = 0; i < count; i += 2, ++counter[0]) {
    const auto words = Philox4x32(counter, key);
    const double radius = deviation * std::sqrt(-2 * std::log((words[0] + 0.5) * 0x1p-32));
    const double angle = 2 * M_PI * (words[1] * 0x1p-32);
    value[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) value[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

}  // namespace

size_t ParameterSpec::count() const {
  size_t product = 1;
  for (int dim : shape) product *= size_t(dim);
  return product;
}

void WriteInitialWeights(const ParameterSpec& spec, uint64_t seed, uint32_t index, float* value) {
  const size_t count = spec.count();
  if (spec.fan_in == 0) {
    std::fill_n(value, count, spec.value);
    return;
  }
  if (spec.initializer == Initializer::kHeNormal) {
    return WriteNormal(
        std::sqrt(2.0 / spec.fan_out), KeyOfSeed(seed),
        RandomDomain(RandomUse::kInitialWeights, index), count, value);
  }
  const float limit = std::sqrt(6.0f / static_cast<float>(spec.fan_in + spec.fan_out));
  PhiloxCounter counter{0, 0, 0, RandomDomain(RandomUse::kInitialWeights, index)};
  for (size_t i = 0; i < count; i += 4, ++counter[0]) {
    const auto words = Philox4x32(counter, KeyOfSeed(seed));
    for (size_t j = i; j < std::min(i + 4, count); ++j)
      value[j] = limit * SymmetricUniform(words[j - i]);
  }
}

}  // namespace dtrun::models

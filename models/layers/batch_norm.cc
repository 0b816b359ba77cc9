#include "models/layers/batch_norm.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "models/layers/builder.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/layer_plumbing.h"
#include "models/layers/network_graph.h"
#include "models/layers/registry.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

// Two sums per channel, followed by the number of values. The ranks add them with one all-reduce.
struct ChannelSums {
  explicit ChannelSums(size_t n) : channels(n), values(2 * n + 1) {}
  double& first(size_t c) { return values[c]; }
  double& second(size_t c) { return values[channels + c]; }
  double& count() { return values[2 * channels]; }

  size_t channels;
  std::vector<double> values;
};

}  // namespace

// Per channel c, over the N values of the batch, with r = 1 / sqrt(variance + epsilon):
//   forward   y = gamma r x + (beta - gamma r mean)
//   backward  d beta = S1 = sum dy,   d gamma = S2 = r sum dy (x - mean)
//             dx = gamma r dy - (gamma r^2 S2 / N) (x - mean) - gamma r S1 / N
// Sums run over each example first, then over the examples in their order. Therefore the result
// does not depend on the number of threads. If synchronised, mean, variance and dx use the sums and
// N of all ranks. d beta and d gamma remain those of this rank, like all gradients.
//
// dx overwrites x, because the layer before does not read its output again. Therefore a deep
// network keeps two tensors per normalised convolution, not three.
//
// If a tensor is larger than the caches, a pass over it costs as much as its memory traffic.
// Therefore the pass that writes y also applies the ReLU, and adds the sum at the end of a residual
// block (TakeSum). The passes that read dy compute the sign of y from x again, and apply the
// backward pass of the ReLU. For the layer behind, the output is a tensor without a ReLU.
struct BatchNorm::Impl {
  BatchNormOptions options;
  Builder& builder;
  Tensor *input, *output;
  const Tensor* term = nullptr;  // added to the normalised values; may be null
  bool relu;                     // after the term is added
  size_t channels, padded;       // padded: with the padding of the last group
  float *moving_mean, *moving_variance;
  Parameter *gamma_parameter, *beta_parameter;
  std::vector<float> center, mean, scale, offset, dx_of_dy, dx_of_x, dx_offset;
  std::vector<double> reciprocal;     // r
  std::vector<double> first, second;  // per example and channel
  ChannelSums sums;

  Impl(const BatchNormOptions& o, Builder& b, Tensor* in)
      : options(o),
        builder(b),
        input(in),
        output(b.NewTensor(in->shape, in->block, false)),
        relu(o.activation == Activation::kRelu),
        channels(size_t(in->shape.channels)),
        padded(size_t(in->blocks()) * size_t(in->block)),
        moving_mean(Floats(b.buffers[0].buffer)),
        moving_variance(Floats(b.buffers[1].buffer)),
        gamma_parameter(&b.parameters[0]),
        beta_parameter(&b.parameters[1]),
        reciprocal(channels),
        first(size_t(b.batch()) * padded),
        second(size_t(b.batch()) * padded),
        sums(channels) {
    for (auto* values : {&center, &mean, &scale, &offset, &dx_of_dy, &dx_of_x, &dx_offset})
      values->resize(padded);
  }

  // The current addresses: the values of the parameters may move.
  const float* gamma() const { return Floats(gamma_parameter->value); }
  const float* beta() const { return Floats(beta_parameter->value); }

  // Calls body(offset of the group in the tensor, first channel, example) in parallel.
  template <typename Body>
  void ForEachGroup(int examples, const Body& body) const {
    const auto blocks = size_t(input->blocks()), block = size_t(input->block);
    const size_t group = block * input->shape.pixels();
    ForEachExample(examples * input->blocks(), [&](size_t i) {
      body(i * group, i % blocks * block, i / blocks);
    });
  }

  ChannelGroup group() const { return {input->shape.pixels(), size_t(input->block)}; }
  ChannelLines NormalizationOf(size_t c) const { return {scale.data() + c, offset.data() + c}; }
  // The layers that write dy apply the backward pass of a ReLU behind a sum.
  bool masks_gradient() const { return options.activation == Activation::kRelu; }

  void AddUpExamples(int examples) {
    for (size_t c = 0; c < channels; ++c) {
      sums.first(c) = sums.second(c) = 0;
      for (size_t i = 0; i < size_t(examples); ++i) {
        sums.first(c) += first[i * padded + c];
        sums.second(c) += second[i * padded + c];
      }
    }
    sums.count() = static_cast<double>(size_t(examples) * input->shape.pixels());
  }

  void AddUpRanks() {
    if (!options.synchronized) return;
    builder.communicator->AllReduce(Buffer(sums.values.data(), sums.values.size()));
  }

  // Uses the first value of each channel.
  void ChooseCenters() {
    const auto block = size_t(input->block);
    for (size_t c = 0; c < channels; ++c)
      center[c] = input->data[c / block * block * input->shape.pixels() + c % block];
  }

  // Computes the sums of x and x^2 over all ranks, from the centered sums of this rank.
  void SumInputs(int examples) {
    ChooseCenters();
    ForEachGroup(examples, [&](size_t at, size_t c, size_t i) {
      CenteredSums(
          input->data + at, group(), center.data() + c, first.data() + i * padded + c,
          second.data() + i * padded + c);
    });
    AddUpExamples(examples);
    for (size_t c = 0; c < channels; ++c) {
      const double from = center[c], sum = sums.first(c), count = sums.count();
      sums.first(c) = sum + count * from;
      sums.second(c) += from * (2 * sum + count * from);
    }
    AddUpRanks();
  }

  void UseStatistics(size_t c, double channel_mean, double variance) {
    reciprocal[c] = 1 / std::sqrt(variance + options.epsilon);
    mean[c] = static_cast<float>(channel_mean);
    scale[c] = static_cast<float>(gamma()[c] * reciprocal[c]);
    offset[c] = static_cast<float>(beta()[c] - gamma()[c] * reciprocal[c] * channel_mean);
  }

  void UseBatch(int examples) {
    SumInputs(examples);
    if (sums.count() == 0) return UseMoving();
    const auto kept = static_cast<float>(options.momentum);
    for (size_t c = 0; c < channels; ++c) {
      const double channel_mean = sums.first(c) / sums.count();
      const double square = sums.second(c) / sums.count();
      const double variance = std::max(0.0, square - channel_mean * channel_mean);
      UseStatistics(c, channel_mean, variance);
      const auto m = static_cast<float>(channel_mean), v = static_cast<float>(variance);
      moving_mean[c] = kept * moving_mean[c] + (1 - kept) * m;
      moving_variance[c] = kept * moving_variance[c] + (1 - kept) * v;
    }
  }

  void UseMoving() {
    for (size_t c = 0; c < channels; ++c)
      UseStatistics(c, double{moving_mean[c]}, double{moving_variance[c]});
  }

  void Apply(int examples) {
    ForEachGroup(examples, [&](size_t at, size_t c, size_t) {
      ScaleChannels(
          input->data + at, group(), NormalizationOf(c),
          term == nullptr ? nullptr : term->data + at, relu, output->data + at);
    });
  }

  void SumGradients(int examples) {
    ForEachGroup(examples, [&](size_t at, size_t c, size_t i) {
      const ChannelLines normalization = NormalizationOf(c);
      GradientSums(
          input->data + at, output->gradient + at, group(), mean.data() + c,
          masks_gradient() ? &normalization : nullptr, first.data() + i * padded + c,
          second.data() + i * padded + c);
    });
    AddUpExamples(examples);
  }

  void WriteParameterGradients() {
    for (size_t c = 0; c < channels; ++c) {
      Floats(beta_parameter->gradient)[c] = static_cast<float>(sums.first(c));
      Floats(gamma_parameter->gradient)[c] = static_cast<float>(reciprocal[c] * sums.second(c));
    }
  }

  void WriteInputGradient(int examples) {
    AddUpRanks();
    const double count = std::max(sums.count(), 1.0);
    for (size_t c = 0; c < channels; ++c) {
      const double r = reciprocal[c], to_x = -gamma()[c] * r * r * r * sums.second(c) / count;
      dx_of_dy[c] = static_cast<float>(gamma()[c] * r);
      dx_of_x[c] = static_cast<float>(to_x);
      dx_offset[c] = static_cast<float>(-gamma()[c] * r * sums.first(c) / count - to_x * mean[c]);
    }
    ForEachGroup(examples, [&](size_t at, size_t c, size_t) {
      const ChannelLines normalization = NormalizationOf(c);
      CombineGradients(
          input->data + at, output->gradient + at, group(), dx_of_dy.data() + c,
          {dx_of_x.data() + c, dx_offset.data() + c}, masks_gradient() ? &normalization : nullptr,
          input->relu, input->gradient + at);
    });
  }

  // The layer before reads the gradients of the whole chunk: examples from `examples` on get zeros.
  void ClearRest(int examples) {
    const size_t stride = input->stride();
    std::memset(
        input->gradient + size_t(examples) * stride, 0,
        size_t(builder.chunk() - examples) * stride * sizeof(float));
  }
};

BatchNorm::BatchNorm(const BatchNormOptions& options) : options_(options) {}
BatchNorm::~BatchNorm() = default;
BatchNorm::BatchNorm(BatchNorm&&) noexcept = default;

std::string BatchNorm::description() const {
  return Text(
      "batch_norm", options_.synchronized ? " synchronized" : "",
      options_.activation == Activation::kRelu ? " relu" : "");
}

LayerSettings BatchNorm::settings() const {
  return LayerSettings()
      .Set("momentum", options_.momentum)
      .Set("epsilon", options_.epsilon)
      .Set("activation", NameOf(options_.activation))
      .Set("synchronized", options_.synchronized)
      .Set("initial_gamma", double{options_.initial_gamma});
}

Shape BatchNorm::OutputShape(const Shape& input) const {
  if (!(options_.momentum >= 0 && options_.momentum < 1)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("needs a momentum of at least 0 and below 1, got ", options_.momentum));
  }
  if (!(options_.epsilon > 0)) {
    throw Error(
        ErrorCode::kInvalidArgument, Text("needs an epsilon above 0, got ", options_.epsilon));
  }
  return input;
}

std::vector<ParameterSpec> BatchNorm::ParameterSpecs(const Shape& input) const {
  return {
      {.name = "gamma", .shape = {input.channels}, .value = options_.initial_gamma},
      {.name = "beta", .shape = {input.channels}}};
}

std::vector<ParameterSpec> BatchNorm::BufferSpecs(const Shape& input) const {
  return {
      {.name = "moving_mean", .shape = {input.channels}},
      {.name = "moving_variance", .shape = {input.channels}, .value = 1}};
}

size_t BatchNorm::Describe(NetworkGraph& graph, size_t input) const {
  const Operation norm{
      .kind = OperationKind::kBatchNorm,
      .inputs = {input},
      .parameters = graph.TakeParameters(2),
      .buffers = graph.TakeBuffers(2),
      .normalization = {options_.momentum, options_.epsilon, options_.synchronized}};
  return graph.AddActivation(graph.Add(norm, graph.shapes()[input]), options_.activation);
}

Tensor* BatchNorm::BuildForward(Builder& builder, Tensor* input) {
  if (options_.synchronized && builder.communicator == nullptr) {
    throw Error(
        ErrorCode::kInvalidArgument, "needs SequentialOptions::communicator to synchronise over");
  }
  impl_ = std::make_unique<Impl>(options_, builder, input);
  return impl_->output;
}

void BatchNorm::BuildBackward(Builder& builder, bool input_gradient) {
  if (!input_gradient) return;
  if (impl_->input->shared) return builder.GiveGradient(impl_->input);
  builder.PutGradient(impl_->input, impl_->input->data);
}

bool BatchNorm::TakeSum(const Tensor& term, bool relu) {
  if (options_.activation != Activation::kNone) return false;
  impl_->term = &term;
  impl_->relu = relu;
  return true;
}

void BatchNorm::Forward(const Pass& pass) {
  if (pass.training) {
    impl_->UseBatch(pass.examples);
  } else {
    impl_->UseMoving();
  }
  impl_->Apply(pass.examples);
}

void BatchNorm::BackwardWeights(const Pass& pass) {
  impl_->SumGradients(pass.examples);
  impl_->WriteParameterGradients();
}

void BatchNorm::BackwardData(const Pass& pass) {
  impl_->WriteInputGradient(pass.examples);
  impl_->ClearRest(pass.examples);
}

}  // namespace dtrun::models

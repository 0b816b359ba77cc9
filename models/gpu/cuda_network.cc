// The forward pass copies the inputs to the GPU, enqueues the operations in their order, and copies
// the outputs back. The backward pass enqueues the operations in the reverse order. If several
// operations read a value, the first of them in the backward pass writes its gradient, and the
// others add to the gradient. Values of a reshape share their memory with its input.

#include "models/gpu/cuda_network.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "models/gpu/layer_args.h"
#include "models/message_text.h"

namespace dtrun::models {

ParameterMirror::ParameterMirror(const gpu::Stream& stream, const NetworkToPlan& network)
    : stream_(stream),
      parameters_(*network.parameters),
      buffers_(*network.buffers),
      is_copy_(!parameters_.empty() && parameters_[0].value.device < 0) {
  if (!is_copy_) return;
  uint64_t count = 0, buffer_count = 0;
  for (const Parameter& parameter : parameters_) {
    offsets_.push_back(count);
    count += parameter.value.count;
    arrived_.emplace_back(stream.device());
  }
  for (const NamedBuffer& buffer : buffers_) {
    buffer_offsets_.push_back(buffer_count);
    buffer_count += buffer.buffer.count;
  }
  const gpu::Device& device = stream.device();
  values_ = gpu::DeviceMemory(device, count * sizeof(float));
  gradients_ = gpu::DeviceMemory(device, count * sizeof(float));
  buffer_values_ = gpu::DeviceMemory(device, std::max<uint64_t>(buffer_count, 1) * sizeof(float));
  returned_ = gpu::PinnedMemory(device, count * sizeof(float));
}

void ParameterMirror::Upload() {
  if (!is_copy_) return;
  const gpu::DeviceScope scope(stream_.device());
  const auto copy = [&](const Buffer& from, float* to) {
    gpu::CopyToDevice(gpu::AddressOf(to), from.data, from.bytes(), stream_.get());
  };
  for (size_t i = 0; i < parameters_.size(); ++i) copy(parameters_[i].value, value(i));
  for (size_t i = 0; i < buffers_.size(); ++i) copy(buffers_[i].buffer, buffer(i));
}

void ParameterMirror::EnqueueGradient(size_t parameter) {
  const gpu::DeviceScope scope(stream_.device());
  gpu::CopyToHost(
      returned_.as<float>() + offsets_[parameter], gpu::AddressOf(gradient(parameter)),
      parameters_[parameter].gradient.bytes(), stream_.get());
  arrived_[parameter].Record(stream_.get());
  returning_.push_back(parameter);
}

void ParameterMirror::Deliver(const OnReady& on_ready) {
  for (const size_t i : returning_) {
    arrived_[i].Synchronize();
    const Buffer& gradient = parameters_[i].gradient;
    std::memcpy(gradient.data, returned_.as<float>() + offsets_[i], gradient.bytes());
    on_ready(i);
  }
  returning_.clear();
}

void ParameterMirror::DownloadBuffers() {
  if (!is_copy_ || buffers_.empty()) return;
  const gpu::DeviceScope scope(stream_.device());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& to = buffers_[i].buffer;
    gpu::CopyToHost(to.data, gpu::AddressOf(buffer(i)), to.bytes(), stream_.get());
  }
  stream_.Synchronize();
}

CudaPlan::CudaPlan(
    const gpu::Stream& stream, const CudaDeviceOptions& options, const NetworkToPlan& network)
    : stream_(stream),
      options_(options),
      network_(network),
      mirror_(stream, network),
      most_blocks_(16 * static_cast<uint32_t>(stream.device().multiprocessors())),
      workspace_(stream.device(), options.workspace_bytes) {}

void* CudaPlan::NewMemory(uint64_t bytes) {
  memory_.emplace_back(stream_.device(), std::max<uint64_t>(bytes, 1));
  return memory_.back().as<void>();
}

void CudaPlan::ReserveSums(uint32_t channels) {
  const uint64_t bytes = uint64_t{kSumBlocks} * 2 * channels * sizeof(double);
  if (partials_.bytes() >= bytes) return;
  partials_ = gpu::DeviceMemory(stream_.device(), bytes);
  counters_ = gpu::DeviceMemory(stream_.device(), ChannelTiles(channels) * sizeof(uint32_t));
}

namespace {

uint32_t ChannelsIn(const NetworkGraph& graph) {
  int most = 1;
  for (const Shape& shape : graph.shapes()) most = std::max(most, shape.channels);
  return static_cast<uint32_t>(most);
}

class CudaNetwork : public PlannedNetwork {
 public:
  CudaNetwork(
      const gpu::Stream& stream, const CudaDeviceOptions& options, const NetworkToPlan& network,
      NetworkGraph graph)
      : plan_(stream, options, network), graph_(std::move(graph)) {
    plan_.ReserveSums(ChannelsIn(graph_));
    CheckSizes();
    FindMemory();
    FindGradients();
    for (size_t i = 0; i < graph_.operations().size(); ++i) PlanStep(i);
    MakeHostMemory();
    plan_.stream().Synchronize();
  }

  // Enqueued work reads this object's memory. An error of the device appears again in the next
  // call.
  ~CudaNetwork() override {
    try {
      plan_.stream().Synchronize();
    } catch (const Error&) {
    }
  }

  float* input() override { return host_input_.as<float>(); }
  const float* output() const override { return host_output_.as<float>(); }
  float* output_gradient() override { return host_gradient_.as<float>(); }
  const std::vector<LayerImplementation>& implementations() const override {
    return implementations_;
  }

  void PrepareWeights() override {
    plan_.mirror().Upload();
    for (const Step& step : steps_) step.call->PrepareWeights();
  }

  void Forward(const Pass& pass) override {
    CopyInput(static_cast<uint32_t>(pass.examples));
    for (const Step& step : steps_) step.call->Forward(pass);
    CopyOutput();
    if (pass.training) plan_.mirror().DownloadBuffers();
  }

  void Backward(const Pass& pass, const OnReady& on_ready) override {
    CopyOutputGradient();
    for (size_t i = steps_.size(); i-- > 0;) BackwardStep(steps_[i], pass, on_ready);
    plan_.mirror().Deliver(on_ready);
  }

 private:
  // Where an operation leaves the gradient of an input: at `to`, which is then added to `add_to`
  // unless that is null. Both null: the gradient is not needed.
  struct GradientPlace {
    void *to = nullptr, *add_to = nullptr;
    uint32_t count = 0;
  };
  struct Step {
    const Operation* operation;
    std::unique_ptr<CudaOperation> call;
    std::vector<GradientPlace> gradients;
    bool has_gradient = false;  // of its output: an operation before has parameters, or this one
  };

  uint64_t CountOf(const Shape& shape) const { return plan_.rows() * uint64_t{shape.count()}; }

  // The kernels count values with 32 bits.
  void CheckSizes() const {
    for (const Operation& operation : graph_.operations()) {
      const Shape& shape = graph_.shapes()[operation.output];
      if (CountOf(shape) < uint64_t{1} << 31) continue;
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              operation.layer, ": ", plan_.rows(), " examples of ", ToString(shape),
              " in one chunk on a GPU; expected fewer than 2^31 values"));
    }
    const bool is_last =
        !graph_.operations().empty() && graph_.operations().back().kind == OperationKind::kSoftmax;
    if (!is_last || plan_.dtype() == DType::kF32) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            graph_.operations().back().layer, " is the last layer of a network in ",
            NameOf(plan_.dtype()),
            ", in which the gradients of small probabilities overflow; expected f32, or a loss of "
            "logits"));
  }

  // The output is f32 if the last operation is a product, as on the CPU. In another case, it has
  // the dtype of the network.
  DType DtypeOf(const Operation& operation) const {
    const bool is_last = operation.output == graph_.output();
    const bool is_product = operation.kind == OperationKind::kDense && !operation.relu;
    return is_last && is_product ? DType::kF32 : plan_.dtype();
  }

  void FindMemory() {
    values_.resize(graph_.shapes().size());
    values_[0] = {graph_.shapes()[0], plan_.dtype()};
    values_[0].data = plan_.NewMemory(CountOf(graph_.shapes()[0]) * plan_.value_size());
    for (const Operation& operation : graph_.operations()) {
      CudaValue& value = values_[operation.output];
      value = {graph_.shapes()[operation.output], DtypeOf(operation)};
      const bool is_view = operation.kind == OperationKind::kReshape;
      value.data = is_view ? values_[operation.inputs[0]].data
                           : plan_.NewMemory(CountOf(value.shape) * SizeOf(value.dtype));
    }
  }

  // A value needs a gradient if an operation before it has parameters.
  void FindGradients() {
    for (const Operation& operation : graph_.operations()) {
      bool needed = !operation.parameters.empty();
      for (const size_t input : operation.inputs) needed |= values_[input].gradient != nullptr;
      has_gradient_.push_back(needed);
      CudaValue& value = values_[operation.output];
      if (operation.kind == OperationKind::kReshape) {
        value.gradient = values_[operation.inputs[0]].gradient;
      } else if (needed) {
        value.gradient = plan_.NewMemory(CountOf(value.shape) * plan_.value_size());
      }
    }
    // Without parameters, no operation reads the gradient of the output.
    if (output_value().gradient == nullptr)
      values_[graph_.output()].gradient =
          plan_.NewMemory(CountOf(output_value().shape) * plan_.value_size());
    FindGradientPlaces();
  }

  // Goes backward: the first operation that writes a gradient owns the memory.
  void FindGradientPlaces() {
    std::vector<void*> written;
    uint64_t most = 0;
    places_.resize(graph_.operations().size());
    for (size_t i = graph_.operations().size(); i-- > 0;) {
      const Operation& operation = graph_.operations()[i];
      if (operation.kind == OperationKind::kReshape) continue;
      for (const size_t input : operation.inputs) {
        GradientPlace place{values_[input].gradient, nullptr, 0};
        place.count = static_cast<uint32_t>(CountOf(values_[input].shape));
        const bool again = std::find(written.begin(), written.end(), place.to) != written.end();
        if (place.to != nullptr && again) {
          std::swap(place.to, place.add_to);
          most = std::max<uint64_t>(most, place.count);
        }
        written.push_back(values_[input].gradient);
        places_[i].push_back(place);
      }
    }
    void* const term = most == 0 ? nullptr : plan_.NewMemory(most * plan_.value_size());
    for (std::vector<GradientPlace>& places : places_)
      for (GradientPlace& place : places)
        if (place.add_to != nullptr) place.to = term;
  }

  void PlanStep(size_t i) {
    const Operation& operation = graph_.operations()[i];
    if (operation.kind == OperationKind::kReshape) return;
    std::vector<CudaValue> inputs;
    std::vector<void*> gradients;
    for (const size_t input : operation.inputs) inputs.push_back(values_[input]);
    for (const GradientPlace& place : places_[i]) gradients.push_back(place.to);
    try {
      steps_.push_back(
          {&operation,
           PlanOperation(plan_, operation, inputs, values_[operation.output], gradients),
           places_[i], has_gradient_[i]});
    } catch (const Error& error) {
      throw Error(error.code(), Text(operation.layer, ": ", error.what()));
    }
  }

  void MakeHostMemory() {
    const gpu::Device& device = plan_.stream().device();
    const uint64_t inputs = CountOf(graph_.shapes()[0]), outputs = CountOf(output_value().shape);
    host_input_ = gpu::PinnedMemory(device, inputs * sizeof(float));
    host_output_ = gpu::PinnedMemory(device, outputs * sizeof(float));
    host_gradient_ = gpu::PinnedMemory(device, outputs * sizeof(float));
    staging_ = plan_.New<float>(std::max(inputs, outputs));
  }

  const CudaValue& output_value() const { return values_[graph_.output()]; }

  void CopyInput(uint32_t examples) {
    const auto width = static_cast<uint32_t>(graph_.shapes()[0].count());
    const uint64_t bytes = uint64_t{examples} * width * sizeof(float);
    const bool is_f32 = plan_.dtype() == DType::kF32;
    void* const to = is_f32 ? values_[0].data : staging_;
    const gpu::DeviceScope scope(plan_.stream().device());
    if (bytes > 0) gpu::CopyToDevice(gpu::AddressOf(to), input(), bytes, plan_.stream().get());
    if (is_f32 || bytes == 0) return;
    plan_.Enqueue(
        CudaPlan::Typed("narrow", plan_.dtype()), uint64_t{examples} * width,
        LayerNarrowArgs{staging_, values_[0].data, static_cast<uint32_t>(examples * width)});
  }

  // Waits for the pass, because the loss reads the outputs.
  void CopyOutput() {
    const CudaValue& value = output_value();
    const uint64_t count = CountOf(value.shape);
    const void* from = value.data;
    if (value.dtype != DType::kF32) {
      plan_.Enqueue(
          CudaPlan::Typed("widen", value.dtype), count,
          LayerWidenArgs{value.data, staging_, static_cast<uint32_t>(count), 0});
      from = staging_;
    }
    const gpu::DeviceScope scope(plan_.stream().device());
    gpu::CopyToHost(
        host_output_.as<float>(), gpu::AddressOf(from), count * sizeof(float),
        plan_.stream().get());
    plan_.stream().Synchronize();
  }

  void CopyOutputGradient() {
    const CudaValue& value = output_value();
    const uint64_t count = CountOf(value.shape);
    const bool is_f32 = plan_.dtype() == DType::kF32;
    void* const to = is_f32 ? value.gradient : staging_;
    {
      const gpu::DeviceScope scope(plan_.stream().device());
      gpu::CopyToDevice(
          gpu::AddressOf(to), host_gradient_.as<float>(), count * sizeof(float),
          plan_.stream().get());
    }
    if (is_f32) return;
    plan_.Enqueue(
        CudaPlan::Typed("narrow", plan_.dtype()), count,
        LayerNarrowArgs{staging_, value.gradient, static_cast<uint32_t>(count)});
  }

  void BackwardStep(const Step& step, const Pass& pass, const OnReady& on_ready) {
    if (!step.has_gradient) return;
    step.call->BackwardWeights(pass);
    const std::vector<size_t>& parameters = step.operation->parameters;
    for (size_t p = parameters.size(); pass.last && p-- > 0;)
      plan_.mirror().is_copy() ? plan_.mirror().EnqueueGradient(parameters[p])
                               : on_ready(parameters[p]);
    for (size_t i = 0; i < step.gradients.size(); ++i) {
      const GradientPlace& place = step.gradients[i];
      if (place.to == nullptr) continue;
      step.call->BackwardInput(pass, i, place.to);
      if (place.add_to == nullptr) continue;
      plan_.Enqueue(
          CudaPlan::Typed("add", plan_.dtype()), place.count,
          LayerAddArgs{place.add_to, place.to, place.add_to, place.count, 0});
    }
  }

  CudaPlan plan_;
  NetworkGraph graph_;
  std::vector<CudaValue> values_;
  std::vector<std::vector<GradientPlace>> places_;  // by operation
  std::vector<bool> has_gradient_;                  // by operation
  std::vector<Step> steps_;
  std::vector<LayerImplementation> implementations_;
  gpu::PinnedMemory host_input_, host_output_, host_gradient_;
  float* staging_ = nullptr;
};

}  // namespace

std::unique_ptr<PlannedNetwork> PlanCudaNetwork(
    const gpu::Stream& stream, const CudaDeviceOptions& options, const NetworkToPlan& network) {
  NetworkGraph graph = DescribeNetwork(network);
  if (options.rewrites == Rewrites::kAll) graph = FuseRelus(graph);
  return std::make_unique<CudaNetwork>(stream, options, network, std::move(graph));
}

}  // namespace dtrun::models

// EnqueueForward goes through the stages of the plan and enqueues the kernel or the library call of
// each stage. EnqueueBackward goes back through the stages.
//
// The backward pass reuses memory. It does not need the inputs of a pool, because one byte per
// output says where each gradient goes (the winners). So the gradients of a convolution with a pool
// behind it overwrite the outputs of that convolution (GradientOf).

#include "models/gpu/device_network.h"

#include <dtrun/error.h>

#include <algorithm>
#include <utility>

#include "models/gpu/cuda_network.h"
#include "models/gpu/kernel_args.h"
#include "models/message_text.h"

extern "C" {
extern const unsigned long long dtrun_model_input_kernels[];
extern const unsigned long long dtrun_model_convolution_kernels[];
extern const unsigned long long dtrun_model_pool_kernels[];
extern const unsigned long long dtrun_model_loss_kernels[];
extern const unsigned long long dtrun_model_update_kernels[];
}

namespace dtrun::models {

// The beginning of a kernel's name selects the image. The first match counts.
gpu::Kernels& ImageWith(const std::string& kernel) {
  if (kernel.rfind("dtrun_layer_", 0) == 0) return LayerImageWith(kernel);
  static auto& input = *new gpu::Kernels(dtrun_model_input_kernels, "model_input_kernels");
  static auto& convolution =
      *new gpu::Kernels(dtrun_model_convolution_kernels, "model_convolution_kernels");
  static auto& pool = *new gpu::Kernels(dtrun_model_pool_kernels, "model_pool_kernels");
  static auto& loss = *new gpu::Kernels(dtrun_model_loss_kernels, "model_loss_kernels");
  static auto& update = *new gpu::Kernels(dtrun_model_update_kernels, "model_update_kernels");
  const std::pair<const char*, gpu::Kernels&> images[] = {
      {"dtrun_begin_step", input},
      {"dtrun_gather", input},
      {"dtrun_first_convolution", convolution},
      {"dtrun_widen", convolution},
      {"dtrun_pool", pool},
      {"dtrun_dropout", pool},
      {"dtrun_relu", pool},
      {"dtrun_loss", loss},
  };
  for (const auto& [beginning, image] : images)
    if (kernel.rfind(beginning, 0) == 0) return image;
  return update;
}

DeviceNetwork::DeviceNetwork(const gpu::Stream& stream, NetworkPlan plan, const Options& options)
    : stream_(stream), plan_(std::move(plan)), options_(options), stages_(plan_.stages.size()) {
  const size_t value_size = SizeOf(options.dtype), count = plan_.parameter_count;
  values_ = gpu::DeviceMemory(device(), count * sizeof(float));
  gradients_ = gpu::DeviceMemory(device(), count * sizeof(float));
  if (!is_f32()) copy_ = gpu::DeviceMemory(device(), count * value_size);
  inputs_ = gpu::DeviceMemory(device(), options.rows * plan_.input.count() * value_size);
  wanted_ = gpu::DeviceMemory(device(), options.rows * sizeof(int32_t));
  counters_ = gpu::DeviceMemory(device(), stages_.size() * sizeof(uint32_t));
  workspace_ = gpu::DeviceMemory(device(), options.workspace_bytes);
  for (size_t i = 0; i < stages_.size(); ++i) Allocate(i);
  partials_ = gpu::DeviceMemory(device(), PartialBytes(device(), plan_, options.rows));
  for (size_t i = 0; i < stages_.size(); ++i) MakeLibraryCalls(i);
}

uint64_t DeviceNetwork::PartialBytes(
    const gpu::Device& device, const NetworkPlan& plan, uint64_t rows) {
  uint64_t widest = 0;
  for (const Stage& stage : plan.stages)
    widest = std::max(widest, 10 * static_cast<uint64_t>(stage.output.channels));
  const uint64_t blocks = std::max<uint64_t>(
      kSummingBlocks * static_cast<uint64_t>(device.multiprocessors()),
      (rows + kThreads - 1) / kThreads);
  return blocks * (widest + 16) * sizeof(float);
}

void DeviceNetwork::Allocate(size_t i) {
  const Stage& stage = plan_.stages[i];
  const uint64_t values = uint64_t{options_.rows} * stage.width();
  const uint64_t bytes = values * SizeOf(options_.dtype);
  StageMemory& memory = stages_[i];
  if (stage.kind == StageKind::kOutput) {
    logits_ = gpu::DeviceMemory(device(), values * sizeof(float));
  } else {
    memory.outputs = gpu::DeviceMemory(device(), bytes);
  }
  if (!HasPoolBehind(i)) memory.gradients = gpu::DeviceMemory(device(), bytes);
  if (stage.kind == StageKind::kPool) memory.winners = gpu::DeviceMemory(device(), values);
  // With a pool behind it, the pool's winners replace the mask.
  if (stage.kind == StageKind::kFirstConvolution && !HasPoolBehind(i))
    memory.mask = gpu::DeviceMemory(device(), values / 8);
  if (stage.kind == StageKind::kDense)
    memory.mask = gpu::DeviceMemory(device(), options_.rows * MaskBytes(stage.width()));
  if (stage.kind == StageKind::kConvolution && !is_f32()) {
    const uint64_t count = plan_.parameters[stage.kernel].count();
    if (filters_gradient_.bytes() < count * SizeOf(options_.dtype))
      filters_gradient_ = gpu::DeviceMemory(device(), count * SizeOf(options_.dtype));
  }
}

bool DeviceNetwork::HasPoolBehind(size_t i) const {
  return i + 1 < plan_.stages.size() && plan_.stages[i + 1].kind == StageKind::kPool;
}

const void* DeviceNetwork::InputOf(size_t i) const {
  return i == 0 ? inputs() : stages_[i - 1].outputs.as<void>();
}

void* DeviceNetwork::GradientOf(size_t i) const {
  return (HasPoolBehind(i) ? stages_[i].outputs : stages_[i].gradients).as<void>();
}

void* DeviceNetwork::Computed(size_t parameter) const {
  if (is_f32()) return Value(parameter);
  return copy_.as<uint16_t>() + plan_.parameters[parameter].offset;
}

void DeviceNetwork::SetGradients(float* gradients) {
  gradients_ = gpu::DeviceMemory();
  other_gradients_ = gradients;
  // These products write to fixed addresses, so they are made again.
  for (size_t i = 0; i < stages_.size(); ++i)
    if (stages_[i].to_kernel != nullptr) MakeProducts(i);
}

void DeviceNetwork::MakeLibraryCalls(size_t i) {
  const Stage& stage = plan_.stages[i];
  if (stage.kind == StageKind::kDense || stage.kind == StageKind::kOutput) return MakeProducts(i);
  if (stage.kind != StageKind::kConvolution) return;
  stages_[i].convolution = std::make_unique<Convolution>(
      stream_,
      Convolution::Options{
          .input = stage.input,
          .output = stage.output,
          .rows = static_cast<int>(options_.rows),
          .dtype = options_.dtype,
          .tf32 = options_.tf32,
          .selection = options_.selection},
      Workspace{workspace_.as<void>(), workspace_.bytes()}, const_cast<void*>(InputOf(i)),
      Computed(stage.kernel), stages_[i].outputs.as<void>());
}

uint32_t DeviceNetwork::Blocks(uint64_t items, uint32_t per_multiprocessor) const {
  return gpu::BlocksFor(
      items, kThreads, per_multiprocessor * static_cast<uint32_t>(device().multiprocessors()));
}

void DeviceNetwork::EnqueueCopy() {
  if (is_f32()) return;
  Enqueue(
      Typed("dtrun_narrow"), {Blocks(plan_.parameter_count / 4, 16), kThreads},
      NarrowArgs{values(), copy(), plan_.parameter_count});
}

void DeviceNetwork::EnqueueForward(Mode mode, const StepState* state) {
  const uint32_t rows = options_.rows;
  const bool trains = mode == Mode::kTraining;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = plan_.stages[i];
    StageMemory& memory = stages_[i];
    const auto height = static_cast<uint32_t>(stage.input.height);
    const auto width = static_cast<uint32_t>(stage.input.width);
    const auto channels = static_cast<uint32_t>(stage.output.channels);
    switch (stage.kind) {
      case StageKind::kFirstConvolution:
        Enqueue(
            Typed("dtrun_first_convolution"),
            {Blocks(uint64_t{rows} * kThreads, 4), kThreads,
             static_cast<uint32_t>(stage.input.count() * sizeof(float))},
            FirstConvolutionArgs{
                InputOf(i), Value(stage.kernel), Value(stage.bias), memory.outputs.as<void>(),
                trains ? memory.mask.as<uint8_t>() : nullptr, rows, height, width, channels});
        break;
      case StageKind::kConvolution:
        memory.convolution->Forward(InputOf(i), Computed(stage.kernel), memory.outputs.as<void>());
        break;
      case StageKind::kPool: {
        const uint64_t turns = (stage.output.count() / 8 + 31) / 32;
        Enqueue(
            Typed("dtrun_pool"), {Blocks(rows * turns * 32, 16), kThreads},
            PoolArgs{
                InputOf(i), stage.adds_bias ? Value(stage.bias) : nullptr,
                memory.outputs.as<void>(), trains ? memory.winners.as<uint8_t>() : nullptr, state,
                rows, height, width, channels, stage.drops ? stage.dropout : DropoutRule{}});
        break;
      }
      case StageKind::kDense: {
        memory.forward->Enqueue();
        if (!trains || !stage.drops) break;
        const uint64_t turns = (stage.width() / 8 + 31) / 32;
        Enqueue(
            Typed("dtrun_dropout"), {Blocks(rows * turns * 32, 16), kThreads},
            DropoutArgs{
                memory.outputs.as<void>(), memory.is_fused ? memory.mask.as<uint8_t>() : nullptr,
                state, rows, static_cast<uint32_t>(stage.width()),
                static_cast<uint32_t>(MaskBytes(stage.width())), stage.dropout});
        break;
      }
      case StageKind::kOutput: memory.forward->Enqueue(); break;
    }
  }
}

void DeviceNetwork::EnqueueLoss(Mode mode, StepState* state, float* losses) {
  const size_t last = stages_.size() - 1;
  const Stage& stage = plan_.stages[last];
  const bool trains = mode == Mode::kTraining;
  Enqueue(
      Typed("dtrun_loss"), {gpu::BlocksFor(options_.rows, kThreads), kThreads},
      LossArgs{
          logits(), wanted(), state, trains ? GradientOf(last) : nullptr,
          trains ? Gradient(stage.bias) : nullptr, trains ? losses : nullptr, partials_.as<float>(),
          counters_.as<uint32_t>() + last, options_.rows, static_cast<uint32_t>(plan_.classes),
          static_cast<uint32_t>(stage.width())});
}

void DeviceNetwork::EnqueueBackward() {
  for (size_t i = stages_.size(); i-- > 0;) {
    switch (plan_.stages[i].kind) {
      case StageKind::kFirstConvolution: BackwardFirstConvolution(i); break;
      case StageKind::kConvolution: BackwardConvolution(i); break;
      case StageKind::kPool: BackwardPool(i); break;
      case StageKind::kDense:
      case StageKind::kOutput: BackwardDense(i); break;
    }
  }
}

void DeviceNetwork::BackwardPool(size_t i) {
  const Stage& stage = plan_.stages[i];
  const auto height = static_cast<uint32_t>(stage.input.height);
  const auto width = static_cast<uint32_t>(stage.input.width);
  const auto channels = static_cast<uint32_t>(stage.input.channels);
  const uint64_t windows = uint64_t{(height + 1) / 2} * ((width + 1) / 2);
  Enqueue(
      Typed("dtrun_pool_gradient"),
      {Blocks(options_.rows * windows * channels / 8, kSummingBlocks), kThreads},
      PoolGradientArgs{
          GradientOf(i), stages_[i].winners.as<uint8_t>(), GradientOf(i - 1),
          stage.adds_bias ? Gradient(stage.bias) : nullptr, partials_.as<float>(),
          counters_.as<uint32_t>() + i, options_.rows, height, width, channels,
          stage.drops ? stage.dropout.scale : 1});
}

void DeviceNetwork::BackwardConvolution(size_t i) {
  const Stage& stage = plan_.stages[i];
  StageMemory& memory = stages_[i];
  void* const filters = is_f32() ? Gradient(stage.kernel) : filters_gradient_.as<void>();
  memory.convolution->BackwardFilters(InputOf(i), GradientOf(i), filters);
  if (!is_f32()) {
    const uint64_t count = plan_.parameters[stage.kernel].count();
    Enqueue(
        Typed("dtrun_widen"), {Blocks(count / 8, 4), kThreads},
        WidenArgs{filters, Gradient(stage.kernel), count});
  }
  memory.convolution->BackwardInput(GradientOf(i), Computed(stage.kernel), GradientOf(i - 1));
}

void DeviceNetwork::BackwardFirstConvolution(size_t i) {
  const Stage& stage = plan_.stages[i];
  Enqueue(
      Typed("dtrun_first_convolution_gradient"),
      {Blocks(uint64_t{options_.rows} * kThreads, 2), kThreads,
       static_cast<uint32_t>(stage.input.count() * sizeof(float))},
      FirstConvolutionGradientArgs{
          InputOf(i), stages_[i].mask.as<uint8_t>(), GradientOf(i), Gradient(stage.kernel),
          Gradient(stage.bias), partials_.as<float>(), counters_.as<uint32_t>() + i, options_.rows,
          static_cast<uint32_t>(stage.input.height), static_cast<uint32_t>(stage.input.width),
          static_cast<uint32_t>(stage.output.channels)});
}

std::string DeviceNetwork::choices() const {
  std::string text;
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i].convolution)
      text += Text("stage ", i, ": cuDNN ", stages_[i].convolution->choice(), "\n");
    const std::string& choice = stages_[i].choice;
    if (!choice.empty()) text += Text("stage ", i, ": ", choice, "\n");
  }
  return text;
}

void WriteBytes(
    const gpu::Stream& stream, const gpu::DeviceMemory& to, uint64_t offset, const void* from,
    uint64_t bytes) {
  const gpu::DeviceScope scope(stream.device());
  gpu::CopyToDevice(to.address() + offset, from, bytes, stream.get());
  stream.Synchronize();
}

void WriteBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, float* block,
    const std::vector<NamedBuffer>& values) {
  std::vector<float> flat(plan.parameter_count);
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterPlace& place = plan.parameters[i];
    place.ToDevice(static_cast<const float*>(values[i].buffer.data), flat.data() + place.offset);
  }
  const gpu::DeviceScope scope(stream.device());
  gpu::CopyToDevice(gpu::AddressOf(block), flat.data(), flat.size() * sizeof(float), stream.get());
  stream.Synchronize();
}

void ReadBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, const float* block,
    const std::vector<NamedBuffer>& values) {
  std::vector<float> flat(plan.parameter_count);
  const gpu::DeviceScope scope(stream.device());
  gpu::CopyToHost(flat.data(), gpu::AddressOf(block), flat.size() * sizeof(float), stream.get());
  stream.Synchronize();
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterPlace& place = plan.parameters[i];
    place.ToHost(flat.data() + place.offset, static_cast<float*>(values[i].buffer.data));
  }
}

}  // namespace dtrun::models

// The part of the graph API of libcudnn.so.9 that dtrun uses: graphs of one convolution. A
// descriptor has a type and attributes. Attributes are checked when they are set and when the
// descriptor is finalized.

#include <algorithm>
#include <string>

#include "tests/gpu_simulator/cudnn_backend.h"
#include "tests/gpu_simulator/cudnn_handle.h"

namespace {

using namespace dtrun::gpu_simulator;  // NOLINT: their names are the subject

// The target of a cudnnBackendDescriptor_t.
struct Descriptor {
  std::shared_ptr<State> state;
};

State& StateOf(cudnnBackendDescriptor_t descriptor) {
  return *static_cast<Descriptor*>(descriptor)->state;
}

thread_local std::string last_error;

cudnnStatus_t Fail(cudnnStatus_t status, const char* why) {
  last_error = why;
  return status;
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  return type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR ? 8
                                                                                              : 4;
}

cudnnStatus_t FinalizeTensor(const State& state) {
  const auto sizes = state.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t c = sizes[1], row = sizes[3] * c;
  const bool fits = state.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES) ==
                        std::vector<int64_t>{sizes[2] * row, 1, row, c} &&
                    state.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) == 16;
  return fits ? CUDNN_STATUS_SUCCESS
              : Fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "only channels last, aligned to 16 bytes");
}

ConvolutionWindows WindowsOf(const State& convolution) {
  const auto two = [&](cudnnBackendAttributeName_t name) {
    const auto all = convolution.All<int64_t>(name);
    return std::array<int64_t, 2>{all[0], all[1]};
  };
  return {
      two(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), two(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS),
      two(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)};
}

cudnnStatus_t FinalizeConvolution(const State& state) {
  const bool plain =
      state.One<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
      state.One<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) ==
          CUDNN_CROSS_CORRELATION &&
      state.One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2 &&
      state.All<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS) == std::vector<int64_t>{1, 1};
  if (!plain) return Fail(CUDNN_STATUS_NOT_SUPPORTED, "only without dilation, sums in f32");
  if (WindowsOf(state).before != WindowsOf(state).after)
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "no engine for other padding after than before");
  return WindowsOf(state).IsValid()
             ? CUDNN_STATUS_SUCCESS
             : Fail(CUDNN_STATUS_BAD_PARAM, "a negative padding or a stride below 1");
}

ConvolutionTensor TensorOf(const State& state) {
  const auto sizes = state.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  return {
      CudaTypeOf(state.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)), sizes[0], sizes[1],
      sizes[2], sizes[3]};
}

// The rules of an operation list its attributes in a fixed order: alpha, beta, convolution, x, w,
// y.
cudnnStatus_t FinalizeOperation(State& state, ConvolutionKind kind) {
  const std::vector<Rule>& rules = RulesOf(state.type);
  state.call.kind = kind;
  state.call.windows = WindowsOf(state.Other(rules[2].name));
  state.call.x = TensorOf(state.Other(rules[3].name));
  state.call.w = TensorOf(state.Other(rules[4].name));
  state.call.y = TensorOf(state.Other(rules[5].name));
  for (size_t i = 0; i < 3; ++i)
    state.tensors[i] = state.Other(rules[3 + i].name).One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  const bool plain = state.One<float>(rules[0].name) == 1 && state.One<float>(rules[1].name) == 0;
  return plain && state.call.Fits() ? CUDNN_STATUS_SUCCESS
                                    : Fail(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensors do not fit");
}

cudnnStatus_t FinalizePlan(State& state) {
  state.Inherit(state.Other(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
  if (state.engine->fault != Fault::kInPlan) return CUDNN_STATUS_SUCCESS;
  return Fail(
      CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING, "nothing to compile it with");
}

// Copies `values` to a caller's array of `requested` elements.
template <typename T>
cudnnStatus_t Give(const std::vector<T>& values, int64_t requested, int64_t* count, void* to) {
  const auto all = static_cast<int64_t>(values.size());
  *count = requested == 0 ? all : std::min(requested, all);
  if (requested > 0) std::memcpy(to, values.data(), static_cast<size_t>(*count) * sizeof(T));
  return CUDNN_STATUS_SUCCESS;
}

// Moves `states` into descriptors that the caller has made.
cudnnStatus_t GiveDescriptors(
    std::vector<State> states, int64_t requested, int64_t* count, void* to) {
  const auto all = static_cast<int64_t>(states.size());
  *count = requested == 0 ? all : std::min(requested, all);
  auto** descriptors = static_cast<Descriptor**>(to);
  for (int64_t i = 0; requested > 0 && i < *count; ++i) {
    State& state = states[static_cast<size_t>(i)];
    if (descriptors[i]->state->type != state.type)
      return Fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a descriptor of another type");
    state.finalized = true;
    *descriptors[i]->state = std::move(state);
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

EXPORT void cudnnGetLastErrorString(char* message, size_t bytes) {
  std::strncpy(message, last_error.c_str(), bytes);
  last_error.clear();
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(
    cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  auto* const made = new Descriptor{std::make_shared<State>()};
  made->state->type = type;
  *descriptor = made;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(
    cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  State& state = StateOf(descriptor);
  if (state.finalized) return Fail(CUDNN_STATUS_BAD_PARAM, "it is finalized");
  for (const Rule& rule : RulesOf(state.type)) {
    if (rule.name != name) continue;
    if (rule.type != type) return Fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "another type");
    if (rule.count != count) return Fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "another count");
    Attribute attribute{count, {}, {}};
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      const auto* const other = *static_cast<Descriptor* const*>(elements);
      if (!other->state->finalized) return Fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "unfinished");
      attribute.descriptors.push_back(other->state);
    } else {
      const auto* const bytes = static_cast<const char*>(elements);
      attribute.bytes.assign(bytes, bytes + static_cast<size_t>(count) * SizeOf(type));
    }
    state.attributes[name] = std::move(attribute);
    return CUDNN_STATUS_SUCCESS;
  }
  return Fail(CUDNN_STATUS_NOT_SUPPORTED, "an attribute that simulated cuDNN does not have");
}

EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  State& state = StateOf(descriptor);
  for (const Rule& rule : RulesOf(state.type))
    if (state.attributes.count(rule.name) == 0)
      return Fail(CUDNN_STATUS_BAD_PARAM, "an attribute is not set");
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  switch (state.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: status = FinalizeTensor(state); break;
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: status = FinalizeConvolution(state); break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      status = FinalizeOperation(state, ConvolutionKind::kForward);
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      status = FinalizeOperation(state, ConvolutionKind::kFilters);
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      status = FinalizeOperation(state, ConvolutionKind::kInput);
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      state.Inherit(state.Other(CUDNN_ATTR_OPERATIONGRAPH_OPS));
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      state.Inherit(state.Other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: status = FinalizePlan(state); break;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: break;
    default: return Fail(CUDNN_STATUS_NOT_SUPPORTED, "what simulated cuDNN does not have");
  }
  state.finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(
    cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t requested, int64_t* count, void* to) {
  const State& state = StateOf(descriptor);
  if (!state.finalized) return Fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
  const auto is = [&](cudnnBackendAttributeName_t wanted, cudnnBackendAttributeType_t of) {
    return name == wanted && type == of;
  };
  const auto part = [&](cudnnBackendDescriptorType_t of, const Engine* engine, const Knob* knob) {
    State made;
    made.type = of;
    made.Inherit(state);
    made.engine = engine;
    made.knob = knob;
    return made;
  };
  std::vector<State> parts;
  if (is(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    const auto mode = state.One<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
    for (const Engine& engine : EnginesOf(mode))
      parts.push_back(part(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &engine, nullptr));
    return GiveDescriptors(std::move(parts), requested, count, to);
  }
  if (is(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    parts.push_back(part(CUDNN_BACKEND_ENGINE_DESCRIPTOR, state.engine, nullptr));
    return GiveDescriptors(std::move(parts), requested, count, to);
  }
  if (is(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    for (const Knob& knob : state.engine->knobs)
      parts.push_back(part(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, state.engine, &knob));
    return GiveDescriptors(std::move(parts), requested, count, to);
  }
  if (is(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64))
    return Give(std::vector<int64_t>{state.engine->index}, requested, count, to);
  if (is(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE))
    return Give(state.engine->notes, requested, count, to);
  if (is(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE))
    return Give(std::vector{state.knob->type}, requested, count, to);
  if (is(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64))
    return Give(std::vector<int64_t>{state.knob->value}, requested, count, to);
  if (is(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64))
    return Give(std::vector<int64_t>{state.engine->workspace}, requested, count, to);
  return Fail(CUDNN_STATUS_NOT_SUPPORTED, "an attribute that simulated cuDNN does not have");
}

EXPORT cudnnStatus_t cudnnBackendExecute(
    cudnnHandle_t handle, cudnnBackendDescriptor_t of_plan, cudnnBackendDescriptor_t of_pack) {
  const State &plan = StateOf(of_plan), &pack = StateOf(of_pack);
  if (!plan.finalized || !pack.finalized)
    return Fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
  const Fault fault = plan.engine->fault;
  if (fault == Fault::kInExecution || (fault == Fault::kInCapture && IsCapturing(handle->stream)))
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "an engine that does not work");
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto data_of = [&](int64_t id) -> void* {
    const auto at = std::find(ids.begin(), ids.end(), id);
    return at == ids.end() ? nullptr : pointers.at(static_cast<size_t>(at - ids.begin()));
  };
  ConvolutionCall call = plan.call;
  call.x_data = data_of(plan.tensors[0]);
  call.w_data = data_of(plan.tensors[1]);
  call.y_data = data_of(plan.tensors[2]);
  if (call.x_data == nullptr || call.w_data == nullptr || call.y_data == nullptr)
    return Fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor without memory");
  return EnqueueFor(handle, [call, fault] {
    fault == Fault::kComputesByChance ? call.ComputeByChance() : call.Compute();
  });
}

// Ways of cuDNN's graph API. OperationGraph describes the convolution as a graph of one operation.
// cuDNN's heuristics propose engines for the graph, with settings of their knobs, such as tile
// sizes. The numerical notes of an engine say how the engine rounds and adds values; IsAllowed
// checks the notes. Only this API gives access to the kernels for the tensor units of Hopper and
// later GPUs.
//
// The graph contains neither the bias nor the ReLU. The pool behind the convolution applies both to
// the maxima, which are a quarter of the values and are in the pool's registers. So the bias and
// the ReLU cost no memory traffic there, and engines that cannot fuse them remain candidates.

#include <dtrun/error.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "models/gpu/convolution.h"
#include "models/gpu/cudnn.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

constexpr int64_t kInputId = 1, kFiltersId = 2, kOutputId = 3;

// cuDNN's names for a direction: the operation and the operation's attributes.
struct OperationNames {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t alpha, beta, convolution, input, filters, output;
};

constexpr OperationNames kForward = {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
constexpr OperationNames kBackwardFilters = {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
constexpr OperationNames kBackwardInput = {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};

const OperationNames& NamesOf(Direction direction) {
  switch (direction) {
    case Direction::kForward: return kForward;
    case Direction::kFilters: return kBackwardFilters;
    case Direction::kInput: break;
  }
  return kBackwardInput;
}

using Sizes = std::vector<int64_t>;

// The dimensions are (images, channels, height, width). In memory, the channels come last.
BackendDescriptor TensorDescriptor(
    int64_t id, DType dtype, int64_t images, int64_t channels, int64_t height, int64_t width) {
  BackendDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CudnnTypeOf(dtype));
  tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, Sizes{images, channels, height, width});
  tensor.Set(
      CUDNN_ATTR_TENSOR_STRIDES, Sizes{height * width * channels, 1, width * channels, channels});
  tensor.Finalize();
  return tensor;
}

BackendDescriptor Activations(int64_t id, const Convolution::Options& options, const Shape& shape) {
  return TensorDescriptor(
      id, options.dtype, options.rows, shape.channels, shape.height, shape.width);
}

BackendDescriptor Windows(const Convolution::Options& options) {
  const Sizes padding = {options.padding.rows, options.padding.columns};
  BackendDescriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  convolution.Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  convolution.Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2});
  convolution.Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, padding);
  convolution.Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, padding);
  convolution.Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Sizes{1, 1});
  convolution.Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Sizes{options.stride, options.stride});
  convolution.Finalize();
  return convolution;
}

// A graph of one operation, with the descriptors that the graph refers to.
class OperationGraph {
 public:
  OperationGraph(const ConvolutionSetting& setting, Direction direction)
      : input_(Activations(kInputId, setting.options, setting.options.input)),
        filters_(TensorDescriptor(
            kFiltersId, setting.options.dtype, setting.options.output.channels,
            setting.options.input.channels, setting.options.size, setting.options.size)),
        output_(Activations(kOutputId, setting.options, setting.options.output)),
        convolution_(Windows(setting.options)),
        operation_(NamesOf(direction).operation),
        graph_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    const OperationNames& names = NamesOf(direction);
    operation_.Set(names.alpha, 1.0f);
    operation_.Set(names.beta, 0.0f);
    operation_.Set(names.convolution, convolution_);
    operation_.Set(names.input, input_);
    operation_.Set(names.filters, filters_);
    operation_.Set(names.output, output_);
    operation_.Finalize();
    graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, setting.handle.get());
    graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation_);
    graph_.Finalize();
  }

  // Returns engines with settings. Engines that cuDNN expects to be fast come first.
  std::vector<BackendDescriptor> Proposed(cudnnBackendHeurMode_t mode) const {
    constexpr size_t kMost = 64;
    BackendDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
    heuristics.Set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
    heuristics.Finalize();
    return heuristics.GetDescriptors(
        CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMost);
  }

 private:
  BackendDescriptor input_, filters_, output_, convolution_, operation_, graph_;
};

BackendDescriptor EngineOf(const BackendDescriptor& config) {
  auto engines =
      config.GetDescriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  return std::move(engines.at(0));
}

bool IsAllowed(cudnnBackendNumericalNote_t note, const Convolution::Options& options) {
  const bool is_f32 = options.dtype == DType::kF32;
  switch (note) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: return false;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: return !is_f32 || options.tf32 == Tf32::kAllowed;
    // These algorithms round the transformed values to the type of the tensors.
    case CUDNN_NUMERICAL_NOTE_FFT:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: return is_f32;
    case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP: return true;
    case CUDNN_NUMERICAL_NOTE_TYPE_COUNT: break;
  }
  return false;  // a note of a later cuDNN, with an unknown meaning
}

bool IsAllowed(const BackendDescriptor& engine, const Convolution::Options& options) {
  for (const auto note :
       engine.GetAll<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE))
    if (!IsAllowed(note, options)) return false;
  return true;
}

// "graph engine 62 2=4 13=0": the number of the engine, then the number and the value of each knob.
std::string NameOf(const BackendDescriptor& config, const BackendDescriptor& engine) {
  std::string name = Text("graph engine ", engine.Get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  for (const BackendDescriptor& knob : config.GetDescriptors(
           CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
           CUDNN_KNOB_TYPE_COUNTS)) {
    const auto type = knob.Get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
    name += Text(
        " ", static_cast<int>(type), "=", knob.Get<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  return name;
}

class GraphWay : public ConvolutionWay {
 public:
  GraphWay(
      const ConvolutionSetting& setting, std::shared_ptr<const OperationGraph> graph,
      BackendDescriptor config, std::string name)
      : setting_(setting),
        graph_(std::move(graph)),
        config_(std::move(config)),
        name_(std::move(name)) {}

  std::string name() const override { return name_; }

  // If the engine is compiled at run time, this call compiles the engine.
  void Prepare() override {
    if (plan_) return;
    BackendDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, setting_.handle.get());
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
    plan.Finalize();
    const auto wanted = plan.Get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    if (wanted > static_cast<int64_t>(setting_.workspace.bytes)) {
      throw Error(
          ErrorCode::kUnavailable,
          Text(name_, " wants a workspace of ", wanted, " bytes, has ", setting_.workspace.bytes));
    }
    plan_ = std::move(plan);
  }

  void Enqueue(const ConvolutionTensors& tensors) override {
    BackendDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.Set(
        CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::vector<int64_t>{kInputId, kFiltersId, kOutputId});
    pack.Set(
        CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
        std::vector<void*>{tensors.input, tensors.filters, tensors.output});
    pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, setting_.workspace.data);
    pack.Finalize();
    const Cudnn& cudnn = Cudnn::Get();
    cudnn.Check(
        cudnn.graph->cudnnBackendExecute(setting_.handle.get(), plan_->get(), pack.get()),
        "cudnnBackendExecute");
  }

 private:
  ConvolutionSetting setting_;
  std::shared_ptr<const OperationGraph> graph_;
  BackendDescriptor config_;
  std::string name_;
  std::optional<BackendDescriptor> plan_;
};

}  // namespace

// CUDNN_HEUR_MODE_FALLBACK proposes engines that are slower and more general than those of
// CUDNN_HEUR_MODE_A.
ConvolutionWays GraphWays(const ConvolutionSetting& setting, Direction direction) {
  ConvolutionWays ways;
  if (!Cudnn::Get().graph) return ways;
  const auto graph = std::make_shared<const OperationGraph>(setting, direction);
  std::set<std::string> names;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (BackendDescriptor& config : graph->Proposed(mode)) {
      const BackendDescriptor engine = EngineOf(config);
      std::string name = NameOf(config, engine);
      if (!IsAllowed(engine, setting.options) || !names.insert(name).second) continue;
      ways.push_back(
          std::make_unique<GraphWay>(setting, graph, std::move(config), std::move(name)));
    }
  }
  return ways;
}

}  // namespace dtrun::models

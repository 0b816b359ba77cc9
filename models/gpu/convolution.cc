// Choose lists the ways that cuDNN proposes for a direction. ByTurns alternates between the ways of
// the graph API and those of the classic functions, each in cuDNN's order of expected speed.
// SelectCandidate tries the ways on the device. Choices keeps the result for later convolutions
// with the same KeyOf.
//
// The classic functions have a fixed set of algorithms for each direction. Propose asks cuDNN for
// the expected speed, the workspace and the determinism of each algorithm. WaysOf keeps the first
// deterministic algorithms that fit into the workspace.

#include "models/gpu/convolution.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "gpu/driver.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

// --- Trials

// Throws unless the work can be captured into a graph.
void CheckCapture(const gpu::Stream& stream, const std::function<void()>& enqueue) {
  const gpu::DeviceScope scope(stream.device());
  const gpu::Driver& driver = gpu::Driver::Get();
  CUgraph captured = nullptr;
  driver.cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  const auto end = [&] {
    driver.cuStreamEndCapture(stream.get(), &captured);
    if (captured != nullptr) driver.cuGraphDestroy(captured);
  };
  try {
    enqueue();
  } catch (const Error&) {
    end();
    throw;
  }
  end();
}

}  // namespace

// All runs are enqueued one after the other, with events between them. So the host is ahead of the
// device from the second run on.
double MillisecondsOf(const gpu::Stream& stream, const std::function<void()>& enqueue) {
  constexpr size_t kRuns = 5;
  enqueue();  // loads kernels, which is not possible in a capture
  CheckCapture(stream, enqueue);
  std::vector<std::unique_ptr<gpu::Event>> events;
  for (size_t i = 0; i <= kRuns; ++i) {
    events.push_back(std::make_unique<gpu::Event>(stream.device(), gpu::Event::Timing::kOn));
    if (i > 0) enqueue();
    events.back()->Record(stream.get());
  }
  stream.Synchronize();
  double shortest = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i <= kRuns; ++i)
    shortest = std::min(shortest, events[i]->MillisecondsSince(*events[i - 1]));
  return shortest;
}

std::optional<Selected> SelectCandidate(
    size_t count, Selection selection, const std::function<double(size_t)>& milliseconds,
    std::string& problem) {
  constexpr double kChance = 0.98;
  const size_t most = selection == Selection::kFirst ? 1 : 12;
  std::optional<Selected> best;
  for (size_t i = 0, usable = 0; i < count && usable < most; ++i) {
    try {
      const double taken = milliseconds(i);
      ++usable;
      if (!best || taken < kChance * best->milliseconds) best = Selected{i, taken};
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  return best;
}

namespace {

// --- The ways of the classic functions

// The most ways per direction. Propose returns algorithms that cuDNN expects to be fast first, so
// only the first usable ones are worth a trial.
constexpr size_t kMostWays = 3;

cudnnMathType_t MathOf(const Convolution::Options& options) {
  if (options.dtype != DType::kF32) return CUDNN_TENSOR_OP_MATH;
  return options.tf32 == Tf32::kAllowed ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

// The cuDNN descriptors of a convolution.
class Shapes {
 public:
  explicit Shapes(const Convolution::Options& options) {
    const cudnnDataType_t type = CudnnTypeOf(options.dtype);
    const auto describe = [&](cudnnTensorDescriptor_t* tensor, const Shape& shape) {
      cudnn_.Check(cudnn_.cudnnCreateTensorDescriptor(tensor), "cudnnCreateTensorDescriptor");
      cudnn_.Check(
          cudnn_.cudnnSetTensor4dDescriptor(
              *tensor, CUDNN_TENSOR_NHWC, type, options.rows, shape.channels, shape.height,
              shape.width),
          "cudnnSetTensor4dDescriptor");
    };
    describe(&input, options.input);
    describe(&output, options.output);
    cudnn_.Check(cudnn_.cudnnCreateFilterDescriptor(&filters), "cudnnCreateFilterDescriptor");
    cudnn_.Check(
        cudnn_.cudnnSetFilter4dDescriptor(
            filters, type, CUDNN_TENSOR_NHWC, options.output.channels, options.input.channels,
            options.size, options.size),
        "cudnnSetFilter4dDescriptor");
    cudnn_.Check(
        cudnn_.cudnnCreateConvolutionDescriptor(&convolution), "cudnnCreateConvolutionDescriptor");
    cudnn_.Check(
        cudnn_.cudnnSetConvolution2dDescriptor(
            convolution, options.padding.rows, options.padding.columns, options.stride,
            options.stride, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
        "cudnnSetConvolution2dDescriptor");
    Use(MathOf(options));
  }
  ~Shapes() {
    if (convolution != nullptr) cudnn_.cudnnDestroyConvolutionDescriptor(convolution);
    if (filters != nullptr) cudnn_.cudnnDestroyFilterDescriptor(filters);
    for (const cudnnTensorDescriptor_t each : {input, output})
      if (each != nullptr) cudnn_.cudnnDestroyTensorDescriptor(each);
  }
  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

  void Use(cudnnMathType_t math) {
    cudnn_.Check(
        cudnn_.cudnnSetConvolutionMathType(convolution, math), "cudnnSetConvolutionMathType");
  }

  cudnnTensorDescriptor_t input = nullptr, output = nullptr;
  cudnnFilterDescriptor_t filters = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;

 private:
  const Cudnn& cudnn_ = Cudnn::Get();
};

constexpr int kMostProposed = 16;
constexpr float kOne = 1, kZero = 0;

template <typename Function, typename... Arguments>
void Call(Function Cudnn::*function, const char* name, const Arguments&... arguments) {
  const Cudnn& cudnn = Cudnn::Get();
  cudnn.Check((cudnn.*function)(arguments...), name);
}

// The cuDNN functions of the three directions. Propose fills `proposed` and `count`.
struct Forward {
  using Proposed = cudnnConvolutionFwdAlgoPerf_t;
  static void Propose(cudnnHandle_t handle, const Shapes& s, int* count, Proposed* proposed) {
    Call(
        &Cudnn::cudnnGetConvolutionForwardAlgorithm_v7, "cudnnGetConvolutionForwardAlgorithm_v7",
        handle, s.input, s.filters, s.convolution, s.output, kMostProposed, count, proposed);
  }
  static void Compute(
      const ConvolutionSetting& setting, const Shapes& s, const ConvolutionTensors& t,
      cudnnConvolutionFwdAlgo_t algorithm) {
    Call(
        &Cudnn::cudnnConvolutionForward, "cudnnConvolutionForward", setting.handle.get(), &kOne,
        s.input, t.input, s.filters, t.filters, s.convolution, algorithm, setting.workspace.data,
        setting.workspace.bytes, &kZero, s.output, t.output);
  }
};

struct BackwardFilters {
  using Proposed = cudnnConvolutionBwdFilterAlgoPerf_t;
  static void Propose(cudnnHandle_t handle, const Shapes& s, int* count, Proposed* proposed) {
    Call(
        &Cudnn::cudnnGetConvolutionBackwardFilterAlgorithm_v7,
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7", handle, s.input, s.output, s.convolution,
        s.filters, kMostProposed, count, proposed);
  }
  static void Compute(
      const ConvolutionSetting& setting, const Shapes& s, const ConvolutionTensors& t,
      cudnnConvolutionBwdFilterAlgo_t algorithm) {
    Call(
        &Cudnn::cudnnConvolutionBackwardFilter, "cudnnConvolutionBackwardFilter",
        setting.handle.get(), &kOne, s.input, t.input, s.output, t.output, s.convolution, algorithm,
        setting.workspace.data, setting.workspace.bytes, &kZero, s.filters, t.filters);
  }
};

struct BackwardInput {
  using Proposed = cudnnConvolutionBwdDataAlgoPerf_t;
  static void Propose(cudnnHandle_t handle, const Shapes& s, int* count, Proposed* proposed) {
    Call(
        &Cudnn::cudnnGetConvolutionBackwardDataAlgorithm_v7,
        "cudnnGetConvolutionBackwardDataAlgorithm_v7", handle, s.filters, s.output, s.convolution,
        s.input, kMostProposed, count, proposed);
  }
  static void Compute(
      const ConvolutionSetting& setting, const Shapes& s, const ConvolutionTensors& t,
      cudnnConvolutionBwdDataAlgo_t algorithm) {
    Call(
        &Cudnn::cudnnConvolutionBackwardData, "cudnnConvolutionBackwardData", setting.handle.get(),
        &kOne, s.filters, t.filters, s.output, t.output, s.convolution, algorithm,
        setting.workspace.data, setting.workspace.bytes, &kZero, s.input, t.input);
  }
};

template <typename Functions>
class ClassicWay : public ConvolutionWay {
 public:
  ClassicWay(const ConvolutionSetting& setting, const typename Functions::Proposed& proposed)
      : setting_(setting), shapes_(setting.options), algorithm_(proposed.algo) {
    // If the options ask for multiply-adds in f32, the math type stays CUDNN_FMA_MATH, even if
    // cuDNN proposes the algorithm with another math type.
    math_ = MathOf(setting.options) == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : proposed.mathType;
    shapes_.Use(math_);
  }

  std::string name() const override {
    return Text(
        "classic algorithm ", static_cast<int>(algorithm_), " math ", static_cast<int>(math_));
  }

  void Enqueue(const ConvolutionTensors& tensors) override {
    Functions::Compute(setting_, shapes_, tensors, algorithm_);
  }

 private:
  ConvolutionSetting setting_;
  Shapes shapes_;
  decltype(Functions::Proposed::algo) algorithm_;
  cudnnMathType_t math_;
};

template <typename Functions>
ConvolutionWays WaysOf(const ConvolutionSetting& setting) {
  typename Functions::Proposed proposed[kMostProposed];
  int count = 0;
  Functions::Propose(setting.handle.get(), Shapes(setting.options), &count, proposed);
  ConvolutionWays ways;
  for (int i = 0; i < count && ways.size() < kMostWays; ++i) {
    const bool usable = proposed[i].status == CUDNN_STATUS_SUCCESS &&
                        proposed[i].determinism == CUDNN_DETERMINISTIC &&
                        proposed[i].memory <= setting.workspace.bytes;
    if (usable) ways.push_back(std::make_unique<ClassicWay<Functions>>(setting, proposed[i]));
  }
  return ways;
}

}  // namespace

ConvolutionWays ClassicWays(const ConvolutionSetting& setting, Direction direction) {
  switch (direction) {
    case Direction::kForward: return WaysOf<Forward>(setting);
    case Direction::kFilters: return WaysOf<BackwardFilters>(setting);
    case Direction::kInput: return WaysOf<BackwardInput>(setting);
  }
  return {};
}

namespace {

// --- The choice

struct Choice {
  std::string way;  // the name of the way
  double milliseconds = 0;
};

ChoiceCache<Choice>& Choices() {
  static auto& choices = *new ChoiceCache<Choice>;
  return choices;
}

const char* NameOf(Direction direction) {
  switch (direction) {
    case Direction::kForward: return "forward";
    case Direction::kFilters: return "filters";
    case Direction::kInput: return "input";
  }
  return "";
}

std::string Describe(const Convolution::Options& options) {
  const bool narrow = options.dtype == DType::kF32 && options.tf32 == Tf32::kAllowed;
  return Text(
      "a convolution from ", ToString(options.input), " to ", ToString(options.output), " in ",
      dtrun::NameOf(options.dtype), narrow ? " as TF32" : "", ", ", options.rows, " rows, ",
      options.size, "x", options.size, " stride ", options.stride, ", padding ",
      options.padding.rows, "x", options.padding.columns);
}

// GPUs of one model are alike, so a choice that was made on one GPU holds for the others.
std::string KeyOf(const ConvolutionSetting& setting, Direction direction) {
  const gpu::Device& device = setting.handle.stream().device();
  return Text(
      NameOf(direction), " of ", Describe(setting.options),
      setting.options.selection == Selection::kFirst ? ", the first, " : ", ",
      setting.workspace.bytes, " bytes, ", device.name(), " with ", device.multiprocessors());
}

// If one API cannot list its ways, the other API can still be used. Then `problem` gets the message
// of the error.
ConvolutionWays Listed(
    ConvolutionWays (*list)(const ConvolutionSetting&, Direction),
    const ConvolutionSetting& setting, Direction direction, std::string& problem) {
  try {
    return list(setting, direction);
  } catch (const Error& error) {
    problem = error.what();
    return {};
  }
}

ConvolutionWays ByTurns(ConvolutionWays first, ConvolutionWays second) {
  ConvolutionWays all;
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) all.push_back(std::move(first[i]));
    if (i < second.size()) all.push_back(std::move(second[i]));
  }
  return all;
}

}  // namespace

Convolution::Convolution(
    const gpu::Stream& stream, const Options& options, const Workspace& workspace, void* input,
    void* filters, void* output)
    : options_(options), workspace_(workspace), handle_(std::make_unique<CudnnHandle>(stream)) {
  const ConvolutionTensors tensors{input, filters, output};
  const gpu::DeviceScope scope(stream.device());
  forward_ = Choose(Direction::kForward, tensors);
  to_filters_ = Choose(Direction::kFilters, tensors);
  if (options.input_gradient) to_input_ = Choose(Direction::kInput, tensors);
}

Convolution::~Convolution() {
  const gpu::DeviceScope scope(handle_->stream().device());
  forward_.reset();
  to_filters_.reset();
  to_input_.reset();
}

std::unique_ptr<ConvolutionWay> Convolution::Choose(
    Direction direction, const ConvolutionTensors& tensors) {
  const ConvolutionSetting setting{*handle_, options_, workspace_};
  std::string problem = "cuDNN proposes no algorithm";
  ConvolutionWays of_graph = Listed(GraphWays, setting, direction, problem);
  ConvolutionWays classic = Listed(ClassicWays, setting, direction, problem);
  ConvolutionWays ways = ByTurns(std::move(of_graph), std::move(classic));
  const auto milliseconds = [&](size_t i) {
    ways[i]->Prepare();
    return MillisecondsOf(handle_->stream(), [&] { ways[i]->Enqueue(tensors); });
  };
  const Choice choice = Choices().Get(KeyOf(setting, direction), [&] {
    const auto found = SelectCandidate(ways.size(), options_.selection, milliseconds, problem);
    if (found) return Choice{ways[found->candidate]->name(), found->milliseconds};
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            "cuDNN has no deterministic way to compute '", NameOf(direction), "' of ",
            Describe(options_), ": ", problem));
  });
  const auto chosen = std::find_if(
      ways.begin(), ways.end(), [&](const auto& way) { return way->name() == choice.way; });
  if (chosen == ways.end())
    throw Error(ErrorCode::kSystem, Text("cuDNN does not propose ", choice.way, " again"));
  (*chosen)->Prepare();
  choice_ += Text(
      choice_.empty() ? "" : ", ", NameOf(direction), " ", choice.way, " (", choice.milliseconds,
      " ms)");
  return std::move(*chosen);
}

// The casts are safe: each direction writes one tensor and only reads the other two.
void Convolution::Forward(const void* input, const void* filters, void* output) {
  const gpu::DeviceScope scope(handle_->stream().device());
  forward_->Enqueue({const_cast<void*>(input), const_cast<void*>(filters), output});
}

void Convolution::BackwardFilters(
    const void* input, const void* output_gradient, void* filters_gradient) {
  const gpu::DeviceScope scope(handle_->stream().device());
  to_filters_->Enqueue(
      {const_cast<void*>(input), filters_gradient, const_cast<void*>(output_gradient)});
}

void Convolution::BackwardInput(
    const void* output_gradient, const void* filters, void* input_gradient) {
  const gpu::DeviceScope scope(handle_->stream().device());
  to_input_->Enqueue(
      {input_gradient, const_cast<void*>(filters), const_cast<void*>(output_gradient)});
}

}  // namespace dtrun::models

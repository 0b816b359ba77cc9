// Choose lists the ways that cuDNN proposes for a direction. ByTurns alternates between the ways of
// the graph API and those of the classic functions, each in cuDNN's order of expected speed.
// SelectCandidate tries the ways on the device. Choices keeps the result for later convolutions
// with the same KeyOf.

#include "models/gpu/convolution.h"

#include <dtrun/error.h>

#include <algorithm>
#include <utility>

#include "models/gpu/trial.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

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

// Planner goes through the layers of the network. A convolution, a pool or a dense layer adds a
// stage. A dropout layer changes the stage before it. TakeParameters places a stage's kernel and
// bias in the flat block.

#include "models/gpu/network_plan.h"

#include <dtrun/error.h>

#include <cmath>

#include "models/message_text.h"
#include "models/random/philox.h"

namespace dtrun::models {
namespace {

constexpr size_t kVector = 8;  // values that a thread takes at once
// In values. 128 values of a 16-bit type are 256 bytes, the alignment of matrices that libraries
// expect.
constexpr size_t kPlaceAlignment = 128;

size_t Aligned(size_t count, size_t to) { return (count + to - 1) / to * to; }

bool IsConvolution(const Stage& stage) {
  return stage.kind == StageKind::kFirstConvolution || stage.kind == StageKind::kConvolution;
}

// Whether a block can sum so many channels (AddByChannel).
bool IsWidth(int channels) {
  return channels >= 8 && channels <= 256 && (channels & (channels - 1)) == 0;
}

class Planner {
 public:
  Planner(Sequential& model, uint64_t seed) : model_(model), seed_(seed) {
    plan_.input = shape_ = model.input_shape();
    plan_.classes = static_cast<int>(model.classes());
  }

  NetworkPlan Plan() {
    for (; layer_ < model_.layers().size(); ++layer_) Add(*model_.layers()[layer_]);
    if (plan_.stages.empty() || plan_.stages.back().kind != StageKind::kOutput)
      Refuse("is the last layer", "a dense layer without activation as the last layer");
    if (!model_.buffers().empty())
      Refuse("is in a network with running statistics", "a network without batch normalisation");
    return plan_;
  }

 private:
  [[noreturn]] void Refuse(const std::string& what, const std::string& expected) const {
    const size_t layer = std::min(layer_, model_.layers().size() - 1);
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "layer ", layer, " (", model_.layers()[layer]->description(), ") ", what,
            ", which cannot be computed on a GPU; expected ", expected));
  }

  void Add(const Layer& layer) {
    const Shape input = shape_;
    shape_ = layer.OutputShape(input);
    const std::string kind = layer.kind();
    if (kind == "conv2d") {
      AddConvolution(layer, input);
    } else if (kind == "max_pool2d") {
      AddPool(layer, input);
    } else if (kind == "dropout") {
      AddDropout(layer);
    } else if (kind == "dense") {
      AddDense(layer, input);
    } else if (kind != "flatten" && kind != "reshape") {
      Refuse("is of another kind", "conv2d, max_pool2d, dropout, dense, flatten or reshape");
    }
  }

  void AddConvolution(const Layer& layer, const Shape& input) {
    const LayerSettings settings = layer.settings();
    const LayerSettings wanted = LayerSettings()
                                     .Set("kernel_size", 3)
                                     .Set("strides", 1)
                                     .Set("padding", "valid")
                                     .Set("activation", "relu")
                                     .Set("use_bias", true)
                                     .Set("kernel_l2", 0.0);
    for (const auto& [name, value] : wanted.values()) {
      if (settings.values().at(name) != value)
        Refuse("has another " + name, "3 x 3 without padding, with bias and ReLU");
    }
    constexpr size_t kMostPixels = 10000;  // a block's shared memory holds so many as floats
    if (input.channels == 1 && input.pixels() > kMostPixels)
      Refuse("has larger images", Text("at most ", kMostPixels, " pixels"));
    if (!IsWidth(shape_.channels)) Refuse("has other filters", "8, 16, 32, ... or 256");
    const bool first = plan_.stages.empty();
    if (first != (input.channels == 1))
      Refuse(
          Text("has ", input.channels, " input channels"),
          "one input channel in the first layer, and more in all others");
    AddStage(first ? StageKind::kFirstConvolution : StageKind::kConvolution, input);
    TakeParameters(
        first ? ParameterPlace::Order::kAsIs : ParameterPlace::Order::kFilters,
        size_t(9) * static_cast<size_t>(input.channels));
  }

  void AddPool(const Layer& layer, const Shape& input) {
    if (layer.description() != "max_pool2d 2x2") Refuse("has another window", "a window of 2 x 2");
    if (plan_.stages.empty() || !IsConvolution(plan_.stages.back()))
      Refuse("does not follow a convolution", "a convolution before each pool");
    const Stage before = plan_.stages.back();
    AddStage(StageKind::kPool, input);
    plan_.stages.back().adds_bias = before.kind == StageKind::kConvolution;
    plan_.stages.back().bias = before.bias;
  }

  void AddDropout(const Layer& layer) {
    const bool behind = !plan_.stages.empty() && !plan_.stages.back().drops &&
                        (plan_.stages.back().kind == StageKind::kPool ||
                         plan_.stages.back().kind == StageKind::kDense);
    if (!behind)
      Refuse("follows another layer", "a dropout after a pool or a dense layer with ReLU");
    // The constants are those of models/layers/activations.cc.
    DropoutRule& rule = plan_.stages.back().dropout;
    const double rate = layer.settings().Number("rate");
    rule.keep_below = static_cast<uint32_t>(std::lround((1 - rate) * 65536));
    rule.scale = static_cast<float>(65536.0 / rule.keep_below);
    const PhiloxKey key = KeyOfSeed(seed_);
    rule.key0 = key[0];
    rule.key1 = key[1];
    rule.domain = RandomDomain(RandomUse::kDropout, static_cast<uint32_t>(layer_));
    plan_.stages.back().drops = rule.keep_below < 65536;
  }

  void AddDense(const Layer& layer, const Shape& input) {
    const LayerSettings settings = layer.settings();
    if (settings.Number("kernel_l2") != 0) Refuse("has a regulariser", "none");
    const bool hidden = settings.Text("activation") == "relu";
    if (!hidden && layer_ + 1 < model_.layers().size())
      Refuse("has no ReLU", "one in every dense layer but the last");
    if (hidden && !IsWidth(shape_.channels)) Refuse("has other units", "8, 16, 32, ... or 256");
    AddStage(hidden ? StageKind::kDense : StageKind::kOutput, input);
    TakeParameters(ParameterPlace::Order::kAsIs, input.count());
  }

  // Only the first convolution applies its own bias and ReLU. Each other convolution needs a pool
  // behind it, which applies them.
  void AddStage(StageKind kind, const Shape& input) {
    const bool needs_pool =
        !plan_.stages.empty() && plan_.stages.back().kind == StageKind::kConvolution;
    if (needs_pool && kind != StageKind::kPool)
      Refuse("follows a second convolution", "a 2 x 2 max pool there");
    Stage stage;
    stage.kind = kind;
    stage.input = input;
    stage.output = shape_;
    plan_.stages.push_back(stage);
  }

  // Takes places for a kernel with `rows` rows and for a bias.
  void TakeParameters(ParameterPlace::Order order, size_t rows) {
    Stage& stage = plan_.stages.back();
    const auto columns = static_cast<size_t>(shape_.channels);
    const size_t padded =
        order == ParameterPlace::Order::kAsIs ? Aligned(columns, kVector) : columns;
    stage.kernel =
        Take({.rows = rows, .columns = columns, .padded_columns = padded, .order = order});
    stage.bias = Take({.rows = 1, .columns = columns, .padded_columns = padded});
  }

  size_t Take(ParameterPlace place) {
    place.offset = plan_.parameter_count;
    plan_.parameter_count += Aligned(place.count(), kPlaceAlignment);
    plan_.parameters.push_back(place);
    return plan_.parameters.size() - 1;
  }

  Sequential& model_;
  uint64_t seed_;
  NetworkPlan plan_;
  Shape shape_;
  size_t layer_ = 0;
};

}  // namespace

void ParameterPlace::ToDevice(const float* from, float* to) const {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < padded_columns; ++column) {
      const size_t at =
          order == Order::kFilters ? column * rows + row : row * padded_columns + column;
      to[at] = column < columns ? from[row * columns + column] : 0;
    }
  }
}

void ParameterPlace::ToHost(const float* from, float* to) const {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const size_t at =
          order == Order::kFilters ? column * rows + row : row * padded_columns + column;
      to[row * columns + column] = from[at];
    }
  }
}

NetworkPlan PlanNetwork(Sequential& model, uint64_t seed) {
  const NetworkPlan plan = Planner(model, seed).Plan();
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const ParameterPlace& place = plan.parameters[i];
    if (i < model.parameters().size() &&
        model.parameters()[i].value.count == place.rows * place.columns)
      continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("a network on a GPU: parameter ", i, " does not fit its layer"));
  }
  return plan;
}

double NetworkPlan::OperationsPerExample() const {
  double operations = 0;
  bool first = true;
  for (const Stage& stage : stages) {
    if (stage.kind == StageKind::kPool) continue;
    const ParameterPlace& kernel = parameters[stage.kernel];
    const size_t outputs = IsConvolution(stage) ? stage.output.pixels() : 1;
    operations +=
        2.0 * static_cast<double>(kernel.rows * kernel.columns * outputs) * (first ? 2 : 3);
    first = false;
  }
  return operations;
}

// Counts the kernels that DeviceNetwork enqueues.
double NetworkPlan::BytesPerExample(size_t value_size) const {
  double values = static_cast<double>(input.count());  // gathered
  double bytes = static_cast<double>(input.count());
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const auto in = static_cast<double>(stage.input.count());
    const auto out = static_cast<double>(stage.width());
    const bool first = i == 0;
    switch (stage.kind) {
      case StageKind::kFirstConvolution: {
        const bool pooled = i + 1 < stages.size() && stages[i + 1].kind == StageKind::kPool;
        values += in + out + in + out;
        if (!pooled) bytes += 2 * out / 8;  // the mask
        break;
      }
      case StageKind::kConvolution: values += in + out + (in + out) + (out + in); break;
      case StageKind::kPool:
        values += in + out + out + in;
        bytes += 2 * out;  // winners
        break;
      case StageKind::kDense:
        values += in + out + (stage.drops ? 2 * out : 0) + 3 * out + (in + out);
        if (!first) values += out + in;
        break;
      case StageKind::kOutput:
        values += in + out + (in + out);
        bytes += 2 * 4 * out;  // logits
        if (!first) values += out + in;
        break;
    }
  }
  return bytes + values * static_cast<double>(value_size);
}

uint64_t NetworkPlan::Bytes(uint64_t rows, size_t value_size) const {
  uint64_t of_row = input.count() * value_size + sizeof(int32_t);
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const bool pooled = i + 1 < stages.size() && stages[i + 1].kind == StageKind::kPool;
    of_row += stage.width() * value_size * (pooled ? 1 : 2);
    if (stage.kind == StageKind::kFirstConvolution && !pooled) of_row += stage.width() / 8;
    if (stage.kind == StageKind::kPool) of_row += stage.width();
    if (stage.kind == StageKind::kDense) of_row += (stage.width() + 127) / 128 * 16;  // its mask
    if (stage.kind == StageKind::kOutput) of_row += stage.width() * sizeof(float);
  }
  return rows * of_row + parameter_count * (4 * sizeof(float) + value_size);
}

}  // namespace dtrun::models

// For each product of the network (ProductsOf) and each direction, Chooser finds the fastest
// implementation. Describer asks oneDNN for candidates in several formats. Finalists times all
// candidates in a short trial. Choose times the finalists at several micro-batches.

#include "bench/onednn_floor.h"

#include <dtrun/error.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/registry.h"
#include "models/layers/settings.h"
#include "models/onednn/onednn.h"

namespace dtrun::bench {

// ---- The products of a network ------------------------------------------------------------------

namespace {

using models::LayerList;
using models::Shape;

// The window of a convolution. The padding is a number of pixels, "same" or "valid".
models::Window WindowOf(const models::LayerSettings& settings) {
  constexpr int kMost = 1 << 16;
  models::Window window = {
      settings.Int("kernel_size", 1, kMost), settings.Int("strides", 1, kMost)};
  if (std::holds_alternative<int64_t>(settings.values().at("padding")))
    window.padding = models::Padding::Pixels(settings.Int("padding", 0, kMost));
  else if (settings.Text("padding") == "same")
    window.padding = models::Padding::Same();
  return window;
}

// Finds the products of layers, including layers inside residual blocks.
class ProductFinder {
 public:
  explicit ProductFinder(std::vector<LayerProduct>& products) : products_(products) {}

  // `input_gradient` says whether the layers' input has a gradient. Returns whether their output
  // has a gradient.
  bool Walk(const LayerList& layers, Shape shape, bool input_gradient) {
    for (const auto& layer : layers) {
      input_gradient = Visit(*layer, shape, input_gradient);
      shape = layer->OutputShape(shape);
    }
    return input_gradient;
  }

 private:
  bool Visit(const models::Layer& layer, const Shape& input, bool input_gradient) {
    const models::LayerSettings settings = layer.settings();
    if (layer.kind() == "residual") {
      for (const char* path : {"main", "shortcut"})
        if (settings.Has(path))
          Walk(registry_.MakeLayers(settings.Layers(path)), input, input_gradient);
      return true;
    }
    const auto specs = layer.ParameterSpecs(input);
    if (specs.empty()) return input_gradient;
    if (layer.kind() == "batch_norm") return true;
    ProductShape shape = {input, layer.OutputShape(input), 0, 1, {}, specs.size() > 1};
    if (layer.kind() == "conv2d") {
      const models::Window window = WindowOf(settings);
      const auto rows = models::ExtentOf(window, input.height);
      const auto columns = models::ExtentOf(window, input.width);
      shape.size = window.size;
      shape.stride = window.stride;
      shape.padding = {rows.before, rows.after, columns.before, columns.after};
    } else if (layer.kind() != "dense") {
      throw Error(
          ErrorCode::kInvalidArgument,
          layer.description() +
              ": its products are not known; expected a convolution or a dense "
              "layer");
    }
    products_.push_back({layer.description(), shape, input_gradient});
    return true;
  }

  const models::LayerRegistry registry_ = models::LayerRegistry::BuiltIn();
  std::vector<LayerProduct>& products_;
};

}  // namespace

ProductShape::Key ProductShape::key() const {
  return {input.height, input.width, input.channels, output.height, output.width, output.channels,
          size,         stride,      padding[0],     padding[1],    padding[2],   padding[3],
          bias};
}

double ProductShape::mflop() const {
  const double inputs = convolves() ? 1.0 * size * size * input.channels : 1.0 * input.count();
  return 2e-6 * inputs * static_cast<double>(output.count());
}

std::vector<LayerProduct> ProductsOf(const models::Network& network) {
  std::vector<LayerProduct> products;
  ProductFinder(products).Walk(network.layers, network.input, /*input_gradient=*/false);
  return products;
}

// ---- Their fastest implementations --------------------------------------------------------------

namespace {

using dnnl::memory;
using Tag = memory::format_tag;
namespace onednn = models::onednn;

enum class Direction { kForward, kBackwardData, kBackwardWeights };

const char* NameOf(Direction direction) {
  if (direction == Direction::kForward) return "forward";
  return direction == Direction::kBackwardData ? "backward data" : "backward weights";
}

// The formats of activations for which a product is requested. oneDNN chooses the format of the
// weights.
struct Formats {
  Tag source, destination;
};

std::vector<Formats> FormatsFor(const ProductShape& shape) {
  if (!shape.convolves()) return {{Tag::any, Tag::any}, {Tag::nc, Tag::nc}};
  std::vector<Formats> formats = {{Tag::any, Tag::any}};
  for (Tag tag : {Tag::nchw, Tag::nhwc, Tag::nChw8c, Tag::nChw16c}) formats.push_back({tag, tag});
  constexpr int kFew = 8;  // fewer channels do not fill a group
  if (shape.input.channels < kFew) {
    for (Tag source : {Tag::nchw, Tag::nhwc})
      for (Tag destination : {Tag::nChw8c, Tag::nChw16c}) formats.push_back({source, destination});
  }
  return formats;
}

std::string NameOf(const memory::desc& description) {
  const memory::dims dims = onednn::DimsOf(description);
  constexpr std::pair<Tag, const char*> kTags[] = {
      {Tag::nchw, "nchw"},
      {Tag::nhwc, "nhwc"},
      {Tag::nChw4c, "nChw4c"},
      {Tag::nChw8c, "nChw8c"},
      {Tag::nChw16c, "nChw16c"}};
  if (dims.size() != 4) return "nc";
  for (const auto& [tag, name] : kTags)
    if (description == memory::desc(dims, onednn::TypeOf(description), tag)) return name;
  return "other";
}

// An implementation of a product. Its direction decides which arguments are values and which are
// gradients.
struct Candidate {
  std::string implementation, label;  // the label also has the formats
  memory::desc source, weights, destination, bias;
  dnnl::primitive primitive = {};

  bool is_reference() const {
    return implementation.find("ref") != std::string::npos ||
           implementation.find("simple") != std::string::npos;
  }
};

// Different candidates. Reference implementations count only if there are no others.
class CandidateList {
 public:
  // Accepts candidates that have a label in `labels`. If `labels` is empty, accepts all candidates.
  explicit CandidateList(const std::vector<std::string>& labels) : labels_(labels) {}

  template <typename Description>
  void Add(
      const Description& description, const memory::desc& source, const memory::desc& weights,
      const memory::desc& destination, const memory::desc& bias) {
    Candidate candidate{
        onednn::ImplementationOf(description), "", source, weights, destination, bias};
    const std::string source_name = NameOf(source), destination_name = NameOf(destination);
    candidate.label = candidate.implementation + " " + source_name +
                      (source_name == destination_name ? "" : " to " + destination_name);
    if (!labels_.empty() &&
        std::find(labels_.begin(), labels_.end(), candidate.label) == labels_.end())
      return;
    auto& list = candidate.is_reference() ? reference_ : fast_;
    const auto same = [&](const Candidate& other) {
      return other.label == candidate.label && other.source == source && other.weights == weights &&
             other.destination == destination;
    };
    if (std::any_of(list.begin(), list.end(), same)) return;
    candidate.primitive = dnnl::primitive(description.get());
    list.push_back(std::move(candidate));
  }

  std::vector<Candidate> Take() { return std::move(fast_.empty() ? reference_ : fast_); }

 private:
  const std::vector<std::string>& labels_;
  std::vector<Candidate> fast_, reference_;
};

// Describes products to oneDNN.
class Describer {
 public:
  explicit Describer(DType dtype)
      : type_(models::DataTypeOf(dtype)), engine_(dnnl::engine::kind::cpu, 0) {}

  const dnnl::engine& engine() const { return engine_; }

  // The candidates for `n` examples.
  std::vector<Candidate> Candidates(
      const ProductShape& shape, Direction direction, int n,
      const std::vector<std::string>& labels) const {
    constexpr Formats kAny = {Tag::any, Tag::any};
    CandidateList list(labels);
    for (const Formats& formats : FormatsFor(shape)) {
      if (shape.convolves())
        AddAll(
            Convolution(shape, kAny, Direction::kForward, n),
            Convolution(shape, formats, direction, n), direction, list);
      else
        AddAll(
            InnerProduct(shape, kAny, Direction::kForward, n),
            InnerProduct(shape, formats, direction, n), direction, list);
    }
    return list.Take();
  }

 private:
  // The gradients of weights are f32 in both types. The bias is f32 too.
  memory::desc Weights(const memory::dims& dims, Direction direction) const {
    const bool gradient = direction == Direction::kBackwardWeights;
    return memory::desc(dims, gradient ? memory::data_type::f32 : type_, Tag::any);
  }

  static memory::desc Bias(const ProductShape& shape) {
    if (!shape.bias) return {};
    return memory::desc({shape.output.channels}, memory::data_type::f32, Tag::a);
  }

  onednn::Convolution Convolution(
      const ProductShape& s, const Formats& formats, Direction direction, int n) const {
    return {
        .source = memory::desc(
            {n, s.input.channels, s.input.height, s.input.width}, type_, formats.source),
        .weights = Weights({s.output.channels, s.input.channels, s.size, s.size}, direction),
        .bias = Bias(s),
        .destination = memory::desc(
            {n, s.output.channels, s.output.height, s.output.width}, type_, formats.destination),
        .stride = {s.stride, s.stride},
        .before = {s.padding[0], s.padding[2]},
        .after = {s.padding[1], s.padding[3]}};
  }

  onednn::InnerProduct InnerProduct(
      const ProductShape& s, const Formats& formats, Direction direction, int n) const {
    const auto inputs = static_cast<memory::dim>(s.input.count());
    return {
        .source = memory::desc({n, inputs}, type_, formats.source),
        .weights = Weights({s.output.channels, inputs}, direction),
        .bias = Bias(s),
        .destination = memory::desc({n, s.output.channels}, type_, formats.destination)};
  }

  // `hint` is the forward product, in the formats that oneDNN chooses.
  template <typename Product>
  void AddAll(
      const Product& hint, const Product& product, Direction direction, CandidateList& list) const {
    if (direction == Direction::kForward) {
      onednn::ForEachForward(engine_, product, {}, [&](const auto& d) {
        list.Add(d, d.src_desc(), d.weights_desc(), d.dst_desc(), d.bias_desc());
        return true;
      });
      return;
    }
    const auto forward = onednn::DescribeForward(engine_, hint, {});
    if (direction == Direction::kBackwardData) {
      onednn::ForEachBackwardData(engine_, product, {}, forward, [&](const auto& d) {
        list.Add(d, d.diff_src_desc(), d.weights_desc(), d.diff_dst_desc(), {});
        return true;
      });
    } else {
      onednn::ForEachBackwardWeights(engine_, product, {}, forward, [&](const auto& d) {
        list.Add(d, d.src_desc(), d.diff_weights_desc(), d.diff_dst_desc(), d.diff_bias_desc());
        return true;
      });
    }
  }

  memory::data_type type_;
  dnnl::engine engine_;
};

// Memory that all products share, a piece for each kind of argument. Arguments that products read
// are never written. Their values are small numbers of both signs, as f32 and as bf16. There are no
// zeros, infinities or denormals, because some units compute these at another speed.
class SharedMemory {
 public:
  memory Bind(int argument, const memory::desc& description, const dnnl::engine& engine) {
    Piece& piece = pieces_[argument];
    const size_t values = (description.get_size() + 1) / 2;
    if (piece.empty() || piece.back().count() * 2 < values) piece.push_back(Filled(values));
    return memory(description, engine, piece.back().data());
  }

 private:
  // Arrays that became too small stay, because bound primitives use them.
  using Piece = std::vector<models::FloatArray>;

  static models::FloatArray Filled(size_t values) {
    models::FloatArray array(values / 2 + 1);
    auto* halves = reinterpret_cast<uint16_t*>(array.data());
    for (size_t i = 0; i < 2 * array.count(); ++i) {
      const float value =
          static_cast<float>(static_cast<int>(i * 7919 % 1021) - 510) * 1e-3f + 5e-4f;
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      halves[i] = static_cast<uint16_t>(bits >> 16);
    }
    return array;
  }

  std::map<int, Piece> pieces_;
};

double SecondsOf(const std::function<void()>& call, int calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The fastest of three series of about `least` seconds. A call that is much slower than `limit` is
// not repeated.
double SecondsPerCall(const std::function<void()>& call, double least, double limit) {
  constexpr double kMuch = 1.5, kVeryMuch = 4;
  const double first = SecondsOf(call, 1);  // its memory may be cold
  if (first > kVeryMuch * limit) return first;
  const double second = SecondsOf(call, 1);
  if (second > kMuch * limit) return second;
  const int calls = std::max(1, static_cast<int>(least / second));
  double fastest = second;
  for (int i = 0; i < 3; ++i) fastest = std::min(fastest, SecondsOf(call, calls) / calls);
  return fastest;
}

// Products of more than kLargeMflop per example are tried at two micro-batches only. Other products
// are not tried in calls of more than kLargestCallMflop.
constexpr double kLargeMflop = 50, kLargestCallMflop = 8000;
// Calls of about this size separate fast implementations from slow ones.
constexpr double kTrialMflop = 1000;
constexpr size_t kFinalists = 3;

// Measures which implementation of a product is the fastest.
class Chooser {
 public:
  Chooser(DType dtype, int batch) : describer_(dtype), batch_(batch) {
    shared_ = std::make_shared<Shared>(Shared{{}, dnnl::stream(describer_.engine())});
  }

  FloorPart Choose(const std::string& layer, const ProductShape& shape, Direction direction) {
    FloorPart best;
    best.name = layer + ", " + NameOf(direction);
    const std::vector<std::string> finalists = Finalists(shape, direction);
    for (int n : MicroBatches(shape)) {
      for (const Candidate& candidate : describer_.Candidates(shape, direction, n, finalists)) {
        const auto call = Bind(candidate, direction);
        const double limit = best.calls == 0 ? kNoLimit : best.us_per_example * n * 1e-6;
        const double us = SecondsPerCall(call, 0.02, limit) * 1e6 / n;
        if (best.calls != 0 && us >= best.us_per_example) continue;
        best.implementation = candidate.label;
        best.micro_batch = n;
        best.calls = batch_ / n;
        best.call = call;
        best.us_per_example = us;
      }
    }
    if (best.calls == 0)
      throw Error(ErrorCode::kUnavailable, best.name + ": oneDNN has no implementation");
    return best;
  }

 private:
  struct Shared {
    SharedMemory memory;
    dnnl::stream stream;
  };

  static constexpr double kNoLimit = 1e9;

  // Powers of two that divide the batch, and the batch itself.
  std::vector<int> Divisors() const {
    std::vector<int> sizes;
    for (int n = 1; n < batch_ && batch_ % n == 0; n *= 2) sizes.push_back(n);
    sizes.push_back(batch_);
    return sizes;
  }

  int TrialSize(const ProductShape& shape) const {
    int size = 1;
    for (int n : Divisors())
      if (n * shape.mflop() <= kTrialMflop) size = n;
    return size;
  }

  std::vector<int> MicroBatches(const ProductShape& shape) const {
    const int trial = TrialSize(shape);
    if (shape.mflop() > kLargeMflop) return {trial, batch_};
    std::vector<int> sizes = Divisors();
    std::erase_if(
        sizes, [&](int n) { return n != trial && n * shape.mflop() > kLargestCallMflop; });
    return sizes;
  }

  // Labels of the fastest candidates in a short trial.
  std::vector<std::string> Finalists(const ProductShape& shape, Direction direction) {
    constexpr double kClose = 1.3;
    std::vector<std::pair<double, std::string>> times;
    double best = kNoLimit;
    for (const Candidate& candidate :
         describer_.Candidates(shape, direction, TrialSize(shape), {})) {
      const double seconds = SecondsPerCall(Bind(candidate, direction), 0.002, best);
      best = std::min(best, seconds);
      times.emplace_back(seconds, candidate.label);
    }
    std::sort(times.begin(), times.end());
    std::vector<std::string> labels;
    for (const auto& [seconds, label] : times)
      if (labels.size() < kFinalists && seconds < kClose * best) labels.push_back(label);
    return labels;
  }

  std::function<void()> Bind(const Candidate& candidate, Direction direction) {
    const bool forward = direction == Direction::kForward;
    const bool to_data = direction == Direction::kBackwardData;
    const bool to_weights = direction == Direction::kBackwardWeights;
    std::unordered_map<int, memory> arguments;
    const auto bind = [&](int argument, const memory::desc& description) {
      if (onednn::IsEmpty(description)) return;
      arguments[argument] = shared_->memory.Bind(argument, description, describer_.engine());
    };
    bind(to_data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, candidate.source);
    bind(to_weights ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, candidate.weights);
    bind(forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, candidate.destination);
    bind(to_weights ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS, candidate.bias);
    return [shared = shared_, bound = models::BoundPrimitive(candidate.primitive, arguments)] {
      bound.Run(shared->stream);
    };
  }

  Describer describer_;
  int batch_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

OnednnFloor::OnednnFloor(const models::Network& network, DType dtype, int batch) {
  Chooser chooser(dtype, batch);
  std::map<std::pair<ProductShape::Key, Direction>, size_t> known;
  for (const LayerProduct& product : ProductsOf(network)) {
    for (Direction direction :
         {Direction::kForward, Direction::kBackwardData, Direction::kBackwardWeights}) {
      if (direction == Direction::kBackwardData && !product.input_gradient) continue;
      const auto [place, added] =
          known.try_emplace({product.shape.key(), direction}, parts_.size());
      if (added)
        parts_.push_back(chooser.Choose(product.name, product.shape, direction));
      else
        ++parts_[place->second].layers;
    }
  }
}

void OnednnFloor::Run() const {
  for (const FloorPart& part : parts_)
    for (int i = 0; i < part.calls * part.layers; ++i) part.call();
}

}  // namespace dtrun::bench

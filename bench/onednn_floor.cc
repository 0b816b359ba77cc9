#include "bench/onednn_floor.h"

#include <dtrun/error.h>

#include <algorithm>
#include <chrono>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#include <utility>

namespace dtrun::bench {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;
using models::Layer;
using models::Shape;

// The products of one layer, at one micro-batch.
struct Products {
  dnnl::primitive forward, backward_data, backward_weights;
  using Arguments = std::unordered_map<int, memory>;
  Arguments forward_arguments, backward_data_arguments, backward_weights_arguments;
};

class Maker {
 public:
  explicit Maker(DType dtype)
      : type_(models::DataTypeOf(dtype)), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  dnnl::stream& stream() { return stream_; }

  // The weights' gradients are f32 in both types, as is the bias.
  Products Convolution(const Shape& in, const Shape& out, const std::vector<int>& kernel, int n) {
    const memory::dims stride = {1, 1}, padding = {0, 0};
    const memory::desc x = Any({n, in.channels, in.height, in.width}, type_);
    const memory::desc y = Any({n, out.channels, out.height, out.width}, type_);
    const memory::dims size = {kernel[3], kernel[2], kernel[0], kernel[1]};
    const memory::desc w = Any(size, type_), dw = Any(size, memory::data_type::f32);
    const memory::desc b({kernel[3]}, memory::data_type::f32, memory::format_tag::a);
    const auto direct = algorithm::convolution_direct;
    const dnnl::convolution_forward::primitive_desc forward(
        {prop_kind::forward_training, direct, x, w, b, y, stride, padding, padding}, engine_);
    const dnnl::convolution_backward_data::primitive_desc data(
        {direct, x, w, y, stride, padding, padding}, engine_, forward);
    const dnnl::convolution_backward_weights::primitive_desc weights(
        {direct, x, dw, b, y, stride, padding, padding}, engine_, forward);
    return Bind<
        dnnl::convolution_forward, dnnl::convolution_backward_data,
        dnnl::convolution_backward_weights>(forward, data, weights);
  }

  Products InnerProduct(const std::vector<int>& kernel, int n) {
    const memory::desc x = Any({n, kernel[0]}, type_), y = Any({n, kernel[1]}, type_);
    const memory::dims size = {kernel[1], kernel[0]};
    const memory::desc w = Any(size, type_), dw = Any(size, memory::data_type::f32);
    const memory::desc b({kernel[1]}, memory::data_type::f32, memory::format_tag::a);
    const dnnl::inner_product_forward::primitive_desc forward(
        {prop_kind::forward_training, x, w, b, y}, engine_);
    const dnnl::inner_product_backward_data::primitive_desc data({x, w, y}, engine_, forward);
    const dnnl::inner_product_backward_weights::primitive_desc weights(
        {x, dw, b, y}, engine_, forward);
    return Bind<
        dnnl::inner_product_forward, dnnl::inner_product_backward_data,
        dnnl::inner_product_backward_weights>(forward, data, weights);
  }

 private:
  static memory::desc Any(const memory::dims& dims, memory::data_type type) {
    return memory::desc(dims, type, memory::format_tag::any);
  }

  // Small numbers of both signs, brought into the format: no zeros, infinities or denormals, which
  // some units compute at another speed.
  memory Filled(const memory::desc& description) {
    const memory::dims dims = description.dims();
    memory::dims strides(dims.size(), 1);
    for (size_t i = dims.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * dims[i + 1];
    memory plain(memory::desc(dims, memory::data_type::f32, strides), engine_);
    auto* values = static_cast<float*>(plain.get_data_handle());
    for (int64_t i = 0; i < strides[0] * dims[0]; ++i)
      values[i] = static_cast<float>(i * 7919 % 1021 - 510) * 1e-3f;
    memory filled(description, engine_);
    dnnl::reorder(plain, filled).execute(stream_, plain, filled);
    return filled;
  }

  template <typename Forward, typename Data, typename Weights, typename F, typename D, typename W>
  Products Bind(const F& forward, const D& data, const W& weights) {
    return {
        Forward(forward),
        Data(data),
        Weights(weights),
        {{DNNL_ARG_SRC, Filled(forward.src_desc())},
         {DNNL_ARG_WEIGHTS, Filled(forward.weights_desc())},
         {DNNL_ARG_BIAS, Filled(forward.bias_desc())},
         {DNNL_ARG_DST, Filled(forward.dst_desc())}},
        {{DNNL_ARG_DIFF_DST, Filled(data.diff_dst_desc())},
         {DNNL_ARG_WEIGHTS, Filled(data.weights_desc())},
         {DNNL_ARG_DIFF_SRC, Filled(data.diff_src_desc())}},
        {{DNNL_ARG_SRC, Filled(weights.src_desc())},
         {DNNL_ARG_DIFF_DST, Filled(weights.diff_dst_desc())},
         {DNNL_ARG_DIFF_WEIGHTS, Filled(weights.diff_weights_desc())},
         {DNNL_ARG_DIFF_BIAS, Filled(weights.diff_bias_desc())}}};
  }

  memory::data_type type_;
  dnnl::engine engine_;
  dnnl::stream stream_;
};

double SecondsOf(const std::function<void()>& call, int calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The fastest of three series of 20 ms or more.
double SecondsPerCall(const std::function<void()>& call) {
  call();
  const int calls = std::max(1, static_cast<int>(0.02 / SecondsOf(call, 1)));
  double least = SecondsOf(call, calls);
  for (int i = 0; i < 2; ++i) least = std::min(least, SecondsOf(call, calls));
  return least / calls;
}

using MakeProducts = std::function<Products(int micro_batch)>;

// Tries the powers of two that divide the batch, and the batch itself.
class Chooser {
 public:
  Chooser(std::shared_ptr<Maker> maker, int batch) : maker_(std::move(maker)), batch_(batch) {}

  void Choose(
      const std::string& layer, bool input_gradient, const MakeProducts& make,
      std::vector<FloorPart>& parts) {
    FloorPart forward, data, weights;
    forward.name = layer + ", forward";
    data.name = layer + ", backward data";
    weights.name = layer + ", backward weights";
    for (int n = 1; n <= batch_; n = n < batch_ && batch_ % (2 * n) != 0 ? batch_ : 2 * n) {
      const Products p = make(n);
      Try(forward, n, p.forward, p.forward_arguments);
      if (input_gradient) Try(data, n, p.backward_data, p.backward_data_arguments);
      Try(weights, n, p.backward_weights, p.backward_weights_arguments);
    }
    parts.push_back(forward);
    if (input_gradient) parts.push_back(data);
    parts.push_back(weights);
  }

 private:
  void Try(
      FloorPart& best, int n, const dnnl::primitive& primitive,
      const Products::Arguments& arguments) {
    const auto call = [maker = maker_, bound = models::BoundPrimitive(primitive, arguments)] {
      bound.Run(maker->stream());
    };
    const double us = SecondsPerCall(call) * 1e6 / n;
    if (best.calls != 0 && us >= best.us_per_example) return;
    best.micro_batch = n;
    best.calls = batch_ / n;
    best.call = call;
    best.us_per_example = us;
  }

  std::shared_ptr<Maker> maker_;
  int batch_;
};

}  // namespace

OnednnFloor::OnednnFloor(
    const Shape& input, const models::LayerList& layers, DType dtype, int batch) {
  const auto maker = std::make_shared<Maker>(dtype);
  Chooser chooser(maker, batch);
  Shape shape = input;
  bool input_gradient = false;  // the data's is not needed
  for (const auto& layer : layers) {
    const Shape in = shape, out = layer->OutputShape(in);
    const std::vector<models::ParameterSpec> specs = layer->ParameterSpecs(in);
    shape = out;
    if (specs.empty()) continue;
    const std::vector<int> kernel = specs[0].shape;
    MakeProducts make;
    if (layer->kind() == "dense") {
      make = [=](int n) { return maker->InnerProduct(kernel, n); };
    } else if (layer->kind() == "conv2d" && out.height == in.height - kernel[0] + 1) {
      make = [=](int n) { return maker->Convolution(in, out, kernel, n); };
    } else {
      throw Error(
          ErrorCode::kInvalidArgument,
          layer->description() +
              ": expected a dense layer, or a convolution of stride 1 without "
              "padding");
    }
    chooser.Choose(layer->description(), input_gradient, make, parts_);
    input_gradient = true;
  }
}

void OnednnFloor::Run() const {
  for (const FloorPart& part : parts_)
    for (int i = 0; i < part.calls; ++i) part.call();
}

}  // namespace dtrun::bench

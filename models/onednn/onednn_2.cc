// oneDNN 2: the caller describes an operation, and then looks for an implementation.

#include "models/onednn/onednn.h"

namespace dtrun::models::onednn {

using dnnl::engine;
using dnnl::primitive_attr;
using dnnl::prop_kind;

namespace {

constexpr auto kTraining = prop_kind::forward_training;
constexpr bool kMayBeEmpty = true;

// Returns the implementation that `for_each` visits first, or an empty description.
template <typename Description, typename ForEach>
Description First(const ForEach& for_each) {
  Description first;
  for_each([&](const Description& description) {
    first = description;
    return false;
  });
  return first;
}

}  // namespace

ConvolutionForward DescribeForward(
    const engine& engine, const Convolution& operation, const primitive_attr& attribute) {
  return First<ConvolutionForward>(
      [&](const auto& visit) { ForEachForward(engine, operation, attribute, visit); });
}

ConvolutionBackwardData DescribeBackwardData(
    const engine& engine, const Convolution& operation, const primitive_attr& attribute,
    const ConvolutionForward& forward) {
  return First<ConvolutionBackwardData>([&](const auto& visit) {
    ForEachBackwardData(engine, operation, attribute, forward, visit);
  });
}

ConvolutionBackwardWeights DescribeBackwardWeights(
    const engine& engine, const Convolution& operation, const primitive_attr& attribute,
    const ConvolutionForward& forward) {
  return First<ConvolutionBackwardWeights>([&](const auto& visit) {
    ForEachBackwardWeights(engine, operation, attribute, forward, visit);
  });
}

InnerProductForward DescribeForward(
    const engine& engine, const InnerProduct& operation, const primitive_attr& attribute) {
  return First<InnerProductForward>(
      [&](const auto& visit) { ForEachForward(engine, operation, attribute, visit); });
}

InnerProductBackwardData DescribeBackwardData(
    const engine& engine, const InnerProduct& operation, const primitive_attr& attribute,
    const InnerProductForward& forward) {
  return First<InnerProductBackwardData>([&](const auto& visit) {
    ForEachBackwardData(engine, operation, attribute, forward, visit);
  });
}

InnerProductBackwardWeights DescribeBackwardWeights(
    const engine& engine, const InnerProduct& operation, const primitive_attr& attribute,
    const InnerProductForward& forward) {
  return First<InnerProductBackwardWeights>([&](const auto& visit) {
    ForEachBackwardWeights(engine, operation, attribute, forward, visit);
  });
}

PoolingForward DescribeForward(
    const engine& engine, const Pooling& p, const primitive_attr& attribute) {
  return {
      {kTraining, p.how, p.source, p.destination, p.stride, p.size, p.before, p.after},
      attribute,
      engine,
      kMayBeEmpty};
}

PoolingBackward DescribeBackward(
    const engine& engine, const Pooling& p, const primitive_attr& attribute,
    const PoolingForward& forward) {
  return {
      {p.how, p.source, p.destination, p.stride, p.size, p.before, p.after},
      attribute,
      engine,
      forward,
      kMayBeEmpty};
}

primitive_attr ScratchAttribute(bool relu) {
  primitive_attr attribute;
  attribute.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops fused;
  if (relu) fused.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  attribute.set_post_ops(fused);
  return attribute;
}

dnnl::memory::data_type TypeOf(const dnnl::memory::desc& description) {
  return description.data_type();
}

dnnl::memory::dims DimsOf(const dnnl::memory::desc& description) { return description.dims(); }

// oneDNN 2: next_impl() reads the operation again. The operation must outlive the iteration.

namespace {

using dnnl::engine;

constexpr auto kDirect = dnnl::algorithm::convolution_direct;

template <typename Primitive, typename... Forward>
void VisitAll(
    const engine& engine, const typename Primitive::desc& operation,
    const dnnl::primitive_attr& attribute, const Visit<typename Primitive::primitive_desc>& visit,
    const Forward&... forward) {
  typename Primitive::primitive_desc description(
      operation, attribute, engine, forward..., /*allow_empty=*/true);
  if (!Exists(description)) return;
  while (visit(description) && description.next_impl()) continue;
}

}  // namespace

void ForEachForward(
    const engine& engine, const Convolution& c, const dnnl::primitive_attr& attribute,
    const Visit<ConvolutionForward>& visit) {
  VisitAll<dnnl::convolution_forward>(
      engine,
      {kTraining, kDirect, c.source, c.weights, c.bias, c.destination, c.stride, c.before, c.after},
      attribute, visit);
}

void ForEachBackwardData(
    const engine& engine, const Convolution& c, const dnnl::primitive_attr& attribute,
    const ConvolutionForward& forward, const Visit<ConvolutionBackwardData>& visit) {
  VisitAll<dnnl::convolution_backward_data>(
      engine, {kDirect, c.source, c.weights, c.destination, c.stride, c.before, c.after}, attribute,
      visit, forward);
}

void ForEachBackwardWeights(
    const engine& engine, const Convolution& c, const dnnl::primitive_attr& attribute,
    const ConvolutionForward& forward, const Visit<ConvolutionBackwardWeights>& visit) {
  VisitAll<dnnl::convolution_backward_weights>(
      engine, {kDirect, c.source, c.weights, c.bias, c.destination, c.stride, c.before, c.after},
      attribute, visit, forward);
}

void ForEachForward(
    const engine& engine, const InnerProduct& p, const dnnl::primitive_attr& attribute,
    const Visit<InnerProductForward>& visit) {
  VisitAll<dnnl::inner_product_forward>(
      engine, {kTraining, p.source, p.weights, p.bias, p.destination}, attribute, visit);
}

void ForEachBackwardData(
    const engine& engine, const InnerProduct& p, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward, const Visit<InnerProductBackwardData>& visit) {
  VisitAll<dnnl::inner_product_backward_data>(
      engine, {p.source, p.weights, p.destination}, attribute, visit, forward);
}

void ForEachBackwardWeights(
    const engine& engine, const InnerProduct& p, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward, const Visit<InnerProductBackwardWeights>& visit) {
  VisitAll<dnnl::inner_product_backward_weights>(
      engine, {p.source, p.weights, p.bias, p.destination}, attribute, visit, forward);
}

}  // namespace dtrun::models::onednn

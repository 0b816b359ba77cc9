// oneDNN 3: one step describes both the operation and the implementation.

#include "models/onednn/onednn.h"

namespace dtrun::models::onednn {

using dnnl::engine;
using dnnl::primitive_attr;
using dnnl::prop_kind;

namespace {

constexpr auto kTraining = prop_kind::forward_training;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;
constexpr bool kMayBeEmpty = true;
const dnnl::memory::dims kDense = {0, 0};  // windows without gaps

}  // namespace

ConvolutionForward DescribeForward(
    const engine& engine, const Convolution& c, const primitive_attr& attribute) {
  if (IsEmpty(c.bias)) {
    return {engine,   kTraining, kDirect, c.source,  c.weights,  c.destination,
            c.stride, c.before,  c.after, attribute, kMayBeEmpty};
  }
  return {engine,        kTraining, kDirect,  c.source, c.weights, c.bias,
          c.destination, c.stride,  c.before, c.after,  attribute, kMayBeEmpty};
}

ConvolutionBackwardData DescribeBackwardData(
    const engine& engine, const Convolution& c, const primitive_attr& attribute,
    const ConvolutionForward& forward) {
  return {engine,   kDirect, c.source, c.weights, c.destination, c.stride,
          c.before, c.after, forward,  attribute, kMayBeEmpty};
}

ConvolutionBackwardWeights DescribeBackwardWeights(
    const engine& engine, const Convolution& c, const primitive_attr& attribute,
    const ConvolutionForward& forward) {
  if (IsEmpty(c.bias)) {
    return {engine,   kDirect, c.source, c.weights, c.destination, c.stride,
            c.before, c.after, forward,  attribute, kMayBeEmpty};
  }
  return {engine,   kDirect,  c.source, c.weights, c.bias,    c.destination,
          c.stride, c.before, c.after,  forward,   attribute, kMayBeEmpty};
}

InnerProductForward DescribeForward(
    const engine& engine, const InnerProduct& p, const primitive_attr& attribute) {
  if (IsEmpty(p.bias))
    return {engine, kTraining, p.source, p.weights, p.destination, attribute, kMayBeEmpty};
  return {engine, kTraining, p.source, p.weights, p.bias, p.destination, attribute, kMayBeEmpty};
}

InnerProductBackwardData DescribeBackwardData(
    const engine& engine, const InnerProduct& p, const primitive_attr& attribute,
    const InnerProductForward& forward) {
  return {engine, p.source, p.weights, p.destination, forward, attribute, kMayBeEmpty};
}

InnerProductBackwardWeights DescribeBackwardWeights(
    const engine& engine, const InnerProduct& p, const primitive_attr& attribute,
    const InnerProductForward& forward) {
  if (IsEmpty(p.bias))
    return {engine, p.source, p.weights, p.destination, forward, attribute, kMayBeEmpty};
  return {engine, p.source, p.weights, p.bias, p.destination, forward, attribute, kMayBeEmpty};
}

PoolingForward DescribeForward(
    const engine& engine, const Pooling& p, const primitive_attr& attribute) {
  return {engine, kTraining, p.how,    p.source, p.destination, p.stride,
          p.size, kDense,    p.before, p.after,  attribute,     kMayBeEmpty};
}

PoolingBackward DescribeBackward(
    const engine& engine, const Pooling& p, const primitive_attr& attribute,
    const PoolingForward& forward) {
  return {engine, p.how,    p.source, p.destination, p.stride,  p.size,
          kDense, p.before, p.after,  forward,       attribute, kMayBeEmpty};
}

primitive_attr ScratchAttribute(bool relu) {
  primitive_attr attribute;
  attribute.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops fused;
  if (relu) fused.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  attribute.set_post_ops(fused);
  return attribute;
}

dnnl::memory::data_type TypeOf(const dnnl::memory::desc& description) {
  return description.get_data_type();
}

dnnl::memory::dims DimsOf(const dnnl::memory::desc& description) { return description.get_dims(); }

// oneDNN 3: next_impl() moves a description to its next implementation.

namespace {

using dnnl::engine;

template <typename Description>
void VisitAll(Description description, const Visit<Description>& visit) {
  if (!Exists(description)) return;
  while (visit(description) && description.next_impl()) continue;
}

}  // namespace

void ForEachForward(
    const engine& engine, const Convolution& c, const dnnl::primitive_attr& attribute,
    const Visit<ConvolutionForward>& visit) {
  VisitAll(DescribeForward(engine, c, attribute), visit);
}

void ForEachBackwardData(
    const engine& engine, const Convolution& c, const dnnl::primitive_attr& attribute,
    const ConvolutionForward& forward, const Visit<ConvolutionBackwardData>& visit) {
  VisitAll(DescribeBackwardData(engine, c, attribute, forward), visit);
}

void ForEachBackwardWeights(
    const engine& engine, const Convolution& c, const dnnl::primitive_attr& attribute,
    const ConvolutionForward& forward, const Visit<ConvolutionBackwardWeights>& visit) {
  VisitAll(DescribeBackwardWeights(engine, c, attribute, forward), visit);
}

void ForEachForward(
    const engine& engine, const InnerProduct& p, const dnnl::primitive_attr& attribute,
    const Visit<InnerProductForward>& visit) {
  VisitAll(DescribeForward(engine, p, attribute), visit);
}

void ForEachBackwardData(
    const engine& engine, const InnerProduct& p, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward, const Visit<InnerProductBackwardData>& visit) {
  VisitAll(DescribeBackwardData(engine, p, attribute, forward), visit);
}

void ForEachBackwardWeights(
    const engine& engine, const InnerProduct& p, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward, const Visit<InnerProductBackwardWeights>& visit) {
  VisitAll(DescribeBackwardWeights(engine, p, attribute, forward), visit);
}

}  // namespace dtrun::models::onednn

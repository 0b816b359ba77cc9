// oneDNN 2: an operation is described first, then an implementation of it is looked for.

#include "models/onednn/onednn.h"

namespace dtrun::models::onednn {

using dnnl::engine;
using dnnl::primitive_attr;
using dnnl::prop_kind;

namespace {

constexpr auto kTraining = prop_kind::forward_training;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;
constexpr bool kMayBeEmpty = true;

}  // namespace

ConvolutionForward DescribeForward(
    const engine& engine, const Convolution& c, const primitive_attr& attribute) {
  return {
      {kTraining, kDirect, c.source, c.weights, c.bias, c.destination, c.stride, c.before, c.after},
      attribute,
      engine,
      kMayBeEmpty};
}

ConvolutionBackwardData DescribeBackwardData(
    const engine& engine, const Convolution& c, const primitive_attr& attribute,
    const ConvolutionForward& forward) {
  return {
      {kDirect, c.source, c.weights, c.destination, c.stride, c.before, c.after},
      attribute,
      engine,
      forward,
      kMayBeEmpty};
}

ConvolutionBackwardWeights DescribeBackwardWeights(
    const engine& engine, const Convolution& c, const primitive_attr& attribute,
    const ConvolutionForward& forward) {
  return {
      {kDirect, c.source, c.weights, c.bias, c.destination, c.stride, c.before, c.after},
      attribute,
      engine,
      forward,
      kMayBeEmpty};
}

InnerProductForward DescribeForward(
    const engine& engine, const InnerProduct& p, const primitive_attr& attribute) {
  return {{kTraining, p.source, p.weights, p.bias, p.destination}, attribute, engine, kMayBeEmpty};
}

InnerProductBackwardData DescribeBackwardData(
    const engine& engine, const InnerProduct& p, const primitive_attr& attribute,
    const InnerProductForward& forward) {
  return {{p.source, p.weights, p.destination}, attribute, engine, forward, kMayBeEmpty};
}

InnerProductBackwardWeights DescribeBackwardWeights(
    const engine& engine, const InnerProduct& p, const primitive_attr& attribute,
    const InnerProductForward& forward) {
  return {{p.source, p.weights, p.bias, p.destination}, attribute, engine, forward, kMayBeEmpty};
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

}  // namespace dtrun::models::onednn

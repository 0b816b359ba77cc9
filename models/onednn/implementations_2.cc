// oneDNN 2: next_impl() reads the operation again, so the operation must outlive the iteration.

#include "models/onednn/implementations.h"

namespace dtrun::models::onednn {
namespace {

using dnnl::engine;

constexpr auto kTraining = dnnl::prop_kind::forward_training;
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

// oneDNN 2: whoever goes on to the next implementation reads the operation again, which has to live
// as long.

#include "models/onednn/implementations.h"

namespace dtrun::models::onednn {
namespace {

using dnnl::engine;

constexpr auto kTraining = dnnl::prop_kind::forward_training;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;

template <typename Primitive, typename... Forward>
void VisitAll(
    const engine& engine, const typename Primitive::desc& operation,
    const Visit<typename Primitive::primitive_desc>& visit, const Forward&... forward) {
  const dnnl::primitive_attr attribute;
  typename Primitive::primitive_desc description(
      operation, attribute, engine, forward..., /*allow_empty=*/true);
  if (!Exists(description)) return;
  do {
    visit(description);
  } while (description.next_impl());
}

}  // namespace

void ForEachForward(
    const engine& engine, const Convolution& c, const Visit<ConvolutionForward>& visit) {
  VisitAll<dnnl::convolution_forward>(
      engine,
      {kTraining, kDirect, c.source, c.weights, c.bias, c.destination, c.stride, c.before, c.after},
      visit);
}

void ForEachBackwardData(
    const engine& engine, const Convolution& c, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardData>& visit) {
  VisitAll<dnnl::convolution_backward_data>(
      engine, {kDirect, c.source, c.weights, c.destination, c.stride, c.before, c.after}, visit,
      forward);
}

void ForEachBackwardWeights(
    const engine& engine, const Convolution& c, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardWeights>& visit) {
  VisitAll<dnnl::convolution_backward_weights>(
      engine, {kDirect, c.source, c.weights, c.bias, c.destination, c.stride, c.before, c.after},
      visit, forward);
}

void ForEachForward(
    const engine& engine, const InnerProduct& p, const Visit<InnerProductForward>& visit) {
  VisitAll<dnnl::inner_product_forward>(
      engine, {kTraining, p.source, p.weights, p.bias, p.destination}, visit);
}

void ForEachBackwardData(
    const engine& engine, const InnerProduct& p, const InnerProductForward& forward,
    const Visit<InnerProductBackwardData>& visit) {
  VisitAll<dnnl::inner_product_backward_data>(
      engine, {p.source, p.weights, p.destination}, visit, forward);
}

void ForEachBackwardWeights(
    const engine& engine, const InnerProduct& p, const InnerProductForward& forward,
    const Visit<InnerProductBackwardWeights>& visit) {
  VisitAll<dnnl::inner_product_backward_weights>(
      engine, {p.source, p.weights, p.bias, p.destination}, visit, forward);
}

}  // namespace dtrun::models::onednn

// oneDNN 3: a description steps to its next implementation by itself.

#include "models/onednn/implementations.h"

namespace dtrun::models::onednn {
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

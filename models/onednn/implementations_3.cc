// oneDNN 3: a description steps to its next implementation by itself.

#include "models/onednn/implementations.h"

namespace dtrun::models::onednn {
namespace {

using dnnl::engine;

template <typename Description>
void VisitAll(Description description, const Visit<Description>& visit) {
  if (!Exists(description)) return;
  do {
    visit(description);
  } while (description.next_impl());
}

}  // namespace

void ForEachForward(
    const engine& engine, const Convolution& c, const Visit<ConvolutionForward>& visit) {
  VisitAll(DescribeForward(engine, c, {}), visit);
}

void ForEachBackwardData(
    const engine& engine, const Convolution& c, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardData>& visit) {
  VisitAll(DescribeBackwardData(engine, c, {}, forward), visit);
}

void ForEachBackwardWeights(
    const engine& engine, const Convolution& c, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardWeights>& visit) {
  VisitAll(DescribeBackwardWeights(engine, c, {}, forward), visit);
}

void ForEachForward(
    const engine& engine, const InnerProduct& p, const Visit<InnerProductForward>& visit) {
  VisitAll(DescribeForward(engine, p, {}), visit);
}

void ForEachBackwardData(
    const engine& engine, const InnerProduct& p, const InnerProductForward& forward,
    const Visit<InnerProductBackwardData>& visit) {
  VisitAll(DescribeBackwardData(engine, p, {}, forward), visit);
}

void ForEachBackwardWeights(
    const engine& engine, const InnerProduct& p, const InnerProductForward& forward,
    const Visit<InnerProductBackwardWeights>& visit) {
  VisitAll(DescribeBackwardWeights(engine, p, {}, forward), visit);
}

}  // namespace dtrun::models::onednn

#ifndef DTRUN_MODELS_ONEDNN_IMPLEMENTATIONS_H_
#define DTRUN_MODELS_ONEDNN_IMPLEMENTATIONS_H_

#include <functional>

#include "models/onednn/onednn.h"

namespace dtrun::models::onednn {

/// Calls visit(description) with each implementation that oneDNN has of a product, in oneDNN's
/// order of preference: the first is what Describe... returns. A description is valid during the
/// visit; a primitive made from it stays valid. No visit: oneDNN has none.

template <typename Description>
using Visit = std::function<void(const Description&)>;

void ForEachForward(
    const dnnl::engine& engine, const Convolution& convolution,
    const Visit<ConvolutionForward>& visit);
void ForEachBackwardData(
    const dnnl::engine& engine, const Convolution& convolution, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardData>& visit);
void ForEachBackwardWeights(
    const dnnl::engine& engine, const Convolution& convolution, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardWeights>& visit);

void ForEachForward(
    const dnnl::engine& engine, const InnerProduct& product,
    const Visit<InnerProductForward>& visit);
void ForEachBackwardData(
    const dnnl::engine& engine, const InnerProduct& product, const InnerProductForward& forward,
    const Visit<InnerProductBackwardData>& visit);
void ForEachBackwardWeights(
    const dnnl::engine& engine, const InnerProduct& product, const InnerProductForward& forward,
    const Visit<InnerProductBackwardWeights>& visit);

}  // namespace dtrun::models::onednn

#endif

#ifndef DTRUN_MODELS_ONEDNN_IMPLEMENTATIONS_H_
#define DTRUN_MODELS_ONEDNN_IMPLEMENTATIONS_H_

#include <functional>

#include "models/onednn/onednn.h"

namespace dtrun::models::onednn {

/// Calls visit(description) with each implementation that oneDNN has of a product, in oneDNN's
/// order of preference, until visit returns false: the first is what Describe... returns. A
/// description is valid during the visit, a Copy of it and primitives made from it stay valid. No
/// visit: oneDNN has none.

template <typename Description>
using Visit = std::function<bool(const Description&)>;

void ForEachForward(
    const dnnl::engine& engine, const Convolution& convolution,
    const dnnl::primitive_attr& attribute, const Visit<ConvolutionForward>& visit);
void ForEachBackwardData(
    const dnnl::engine& engine, const Convolution& convolution,
    const dnnl::primitive_attr& attribute, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardData>& visit);
void ForEachBackwardWeights(
    const dnnl::engine& engine, const Convolution& convolution,
    const dnnl::primitive_attr& attribute, const ConvolutionForward& forward,
    const Visit<ConvolutionBackwardWeights>& visit);

void ForEachForward(
    const dnnl::engine& engine, const InnerProduct& product, const dnnl::primitive_attr& attribute,
    const Visit<InnerProductForward>& visit);
void ForEachBackwardData(
    const dnnl::engine& engine, const InnerProduct& product, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward, const Visit<InnerProductBackwardData>& visit);
void ForEachBackwardWeights(
    const dnnl::engine& engine, const InnerProduct& product, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward, const Visit<InnerProductBackwardWeights>& visit);

}  // namespace dtrun::models::onednn

#endif

#ifndef DTRUN_MODELS_ONEDNN_ONEDNN_H_
#define DTRUN_MODELS_ONEDNN_ONEDNN_H_

#include <dnnl.hpp>
#include <functional>
#include <string>

namespace dtrun::models::onednn {

/// The functions that differ between oneDNN 2 and oneDNN 3. onednn_2.cc and onednn_3.cc implement
/// this header. The build picks one of them by the version of oneDNN's headers. No other file of
/// the project depends on the version.
///
/// If oneDNN has no implementation, `Describe...` returns an empty description: see `Exists`. All
/// functions throw dnnl::error if descriptions contradict each other.

/// A convolution of images (N, C, H, W) with weights (O, I, H, W). Formats may be `any`. The
/// dimensions of `stride`, `before` and `after` (padding) are rows, columns.
struct Convolution {
  dnnl::memory::desc source, weights;
  dnnl::memory::desc bias;  ///< empty: none
  dnnl::memory::desc destination;
  dnnl::memory::dims stride, before, after;
};

/// destination (N, O) = source (N, I) times weights (O, I) transposed, plus bias (O).
struct InnerProduct {
  dnnl::memory::desc source, weights;
  dnnl::memory::desc bias;  ///< empty: none
  dnnl::memory::desc destination;
};

/// Pooling of windows of `size`. The dimensions of `stride`, `size`, `before` and `after` are rows,
/// columns.
struct Pooling {
  dnnl::algorithm how;
  dnnl::memory::desc source, destination;
  dnnl::memory::dims stride, size, before, after;
};

using ConvolutionForward = dnnl::convolution_forward::primitive_desc;
using ConvolutionBackwardData = dnnl::convolution_backward_data::primitive_desc;
using ConvolutionBackwardWeights = dnnl::convolution_backward_weights::primitive_desc;
using InnerProductForward = dnnl::inner_product_forward::primitive_desc;
using InnerProductBackwardData = dnnl::inner_product_backward_data::primitive_desc;
using InnerProductBackwardWeights = dnnl::inner_product_backward_weights::primitive_desc;
using PoolingForward = dnnl::pooling_forward::primitive_desc;
using PoolingBackward = dnnl::pooling_backward::primitive_desc;

ConvolutionForward DescribeForward(
    const dnnl::engine& engine, const Convolution& convolution,
    const dnnl::primitive_attr& attribute);
ConvolutionBackwardData DescribeBackwardData(
    const dnnl::engine& engine, const Convolution& convolution,
    const dnnl::primitive_attr& attribute, const ConvolutionForward& forward);
ConvolutionBackwardWeights DescribeBackwardWeights(
    const dnnl::engine& engine, const Convolution& convolution,
    const dnnl::primitive_attr& attribute, const ConvolutionForward& forward);

InnerProductForward DescribeForward(
    const dnnl::engine& engine, const InnerProduct& product, const dnnl::primitive_attr& attribute);
InnerProductBackwardData DescribeBackwardData(
    const dnnl::engine& engine, const InnerProduct& product, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward);
InnerProductBackwardWeights DescribeBackwardWeights(
    const dnnl::engine& engine, const InnerProduct& product, const dnnl::primitive_attr& attribute,
    const InnerProductForward& forward);

PoolingForward DescribeForward(
    const dnnl::engine& engine, const Pooling& pooling, const dnnl::primitive_attr& attribute);
PoolingBackward DescribeBackward(
    const dnnl::engine& engine, const Pooling& pooling, const dnnl::primitive_attr& attribute,
    const PoolingForward& forward);

/// True if oneDNN has an implementation: the description is not empty.
template <typename Description>
bool Exists(const Description& description) {
  return description.get(true) != nullptr;
}

/// Returns an independent copy. In oneDNN 3, next_impl() changes a description and its ordinary
/// copies.
template <typename Description>
Description Copy(const Description& description) {
  dnnl_primitive_desc_t made = nullptr;
  dnnl::error::wrap_c_api(
      dnnl_primitive_desc_clone(&made, description.get()),
      "oneDNN could not copy the description of a primitive");
  Description copy;
  copy.reset(made);
  return copy;
}

/// oneDNN's name for the implementation: "jit:avx2", "x64:gemm:jit", "ref:any".
template <typename Description>
std::string ImplementationOf(const Description& description) {
  return description.impl_info_str();
}

/// An attribute for primitives that take scratch memory from their caller. If `relu`, the result
/// passes a ReLU before it is stored.
dnnl::primitive_attr ScratchAttribute(bool relu);

dnnl::memory::data_type TypeOf(const dnnl::memory::desc& description);
dnnl::memory::dims DimsOf(const dnnl::memory::desc& description);
/// True if the description is empty: its size is zero.
bool IsEmpty(const dnnl::memory::desc& description);

/// The highest instruction set for which oneDNN generates code on this machine. The names are those
/// of ONEDNN_MAX_CPU_ISA: "SSE41", "AVX2", "AVX512_CORE_BF16".
std::string InstructionSet();

/// "2.6.3"
std::string Version();

/// Calls visit(description) with each of oneDNN's implementations, in oneDNN's order of preference,
/// until visit returns false. The first is the result of Describe... If oneDNN has no
/// implementation, visit is not called. A description is valid during the visit. A Copy of it, and
/// primitives made from it, stay valid.

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

#endif  // DTRUN_MODELS_ONEDNN_ONEDNN_H_

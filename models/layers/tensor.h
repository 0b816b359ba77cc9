#ifndef DTRUN_MODELS_LAYERS_TENSOR_H_
#define DTRUN_MODELS_LAYERS_TENSOR_H_

#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

namespace dtrun::models {

/// The shape of one example's activation. A flat shape, such as a dense layer's output, is 1 x 1 x
/// channels.
struct Shape {
  int height = 1, width = 1, channels = 1;

  size_t pixels() const { return size_t(height) * size_t(width); }
  size_t count() const { return pixels() * size_t(channels); }
  bool operator==(const Shape&) const = default;
};

/// "26x26x32", or "128" for a flat shape.
std::string ToString(const Shape& shape);

/// The upper 16 bits of a float.
using Bf16 = uint16_t;

/// Activations of several examples, in the format in which the layer that makes them is fastest.
///
/// The channels of an example are stored in groups of `block`. Value (h, w, c) is at
///   (c / block * height * width + h * width + w) * block + c % block
/// Zeros pad the last group. If block == channels, the format is plain: channels last (HWC).
/// Flattening reads an example in the plain format. block 16 is oneDNN's nChw16c; block 1 is NCHW.
///
/// If `relu` is set, `data` has passed a ReLU. The layer that writes `gradient` also applies the
/// backward pass of this ReLU: `gradient` is zero where `data` is not above zero.
///
/// Values are floats. If a layer computes in bf16 (Layer::computes_in_bf16), `data` and `gradient`
/// point to Bf16 values: use `As`.
struct Tensor {
  Shape shape;
  int block = 1;
  bool relu = false;
  /// Other layers read the data, also in the backward pass: do not overwrite it.
  bool shared = false;
  /// For the part of the network that works on micro-batches: number of values from the data of one
  /// micro-batch to the data of the next. `data` and `gradient` point to the selected micro-batch.
  /// 0: there is memory for one micro-batch only, because the backward pass does not read the data.
  size_t step = 0;
  float* data = nullptr;
  /// Null if the gradient is not needed, as for the input data. May be the same memory as `data`,
  /// if neither the writer nor the reader of the gradient reads the data again.
  float* gradient = nullptr;
  DType dtype = DType::kF32;  ///< or kBF16

  int blocks() const { return (shape.channels + block - 1) / block; }
  bool plain() const { return block == shape.channels; }
  /// Number of values of one example, with the padding of the last group.
  size_t stride() const { return size_t(blocks()) * size_t(block) * shape.pixels(); }
  size_t value_size() const { return dtype == DType::kBF16 ? sizeof(Bf16) : sizeof(float); }
};

/// Casts a tensor's data or gradient to its value type.
template <typename Value>
Value* As(float* values) {
  return reinterpret_cast<Value*>(values);
}

/// Owns floats, zeroed at first and aligned for all vector units.
class FloatArray {
 public:
  FloatArray() = default;
  explicit FloatArray(size_t count);
  float* data() const { return data_.get(); }
  size_t count() const { return count_; }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float[], Free> data_;
  size_t count_ = 0;
};

}  // namespace dtrun::models

#endif

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

/// One example's activation. Flat ones, such as a dense layer's output, are 1 x 1 x channels.
struct Shape {
  int height = 1, width = 1, channels = 1;

  size_t pixels() const { return size_t(height) * size_t(width); }
  size_t count() const { return pixels() * size_t(channels); }
  bool operator==(const Shape&) const = default;
};

/// "26x26x32"; "128" for a flat one.
std::string ToString(const Shape& shape);

/// The upper half of a float's bits.
using Bf16 = uint16_t;

/// Activations of several examples, in the format that the layer which makes them computes fastest.
///
/// The channels of an example are stored in groups of `block`: value (h, w, c) lies at
///   (c / block * height * width + h * width + w) * block + c % block
/// where the last group is filled up with zeros. block = channels is the plain format (channels
/// last, HWC), in which a flattened example is read; 16 is what oneDNN calls nChw16c; 1 is NCHW.
///
/// Whoever writes `gradient` writes that of what stood before the tensor's ReLU, if it has one: it
/// lets through only where data is greater than zero.
///
/// Values are floats. Those of layers that compute in bf16 (Layer::computes_in_bf16) are half as
/// long: `data` and `gradient` then point to Bf16, which `As` says.
struct Tensor {
  Shape shape;
  int block = 1;
  bool relu = false;
  /// Others read the data as well, also on the way back: nobody may write over it.
  bool shared = false;
  /// In the part of the network that works on micro-batches: values from the data of one
  /// micro-batch to those of the next; 0 where there is room for one only, because nobody reads
  /// them again on the way back. `data` and `gradient` point to the micro-batch that is at hand.
  size_t step = 0;
  float* data = nullptr;
  /// Null where nobody needs it: the input data's. May be the memory of `data`, when the one who
  /// writes it has no more use for the data and the one who reads it has none either.
  float* gradient = nullptr;
  DType dtype = DType::kF32;  ///< or kBF16

  int blocks() const { return (shape.channels + block - 1) / block; }
  bool plain() const { return block == shape.channels; }
  /// Values of one example, those that fill up the last group included.
  size_t stride() const { return size_t(blocks()) * size_t(block) * shape.pixels(); }
  size_t value_size() const { return dtype == DType::kBF16 ? sizeof(Bf16) : sizeof(float); }
};

/// A tensor's data or gradient as what it points to.
template <typename Value>
Value* As(float* values) {
  return reinterpret_cast<Value*>(values);
}

/// Owns zeroed floats, aligned for any vector unit.
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

#ifndef DTRUN_RUNTIME_CHECKPOINT_TENSOR_H_
#define DTRUN_RUNTIME_CHECKPOINT_TENSOR_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dtrun/types.h"

namespace dtrun::runtime {

using Shape = std::vector<uint64_t>;
using Metadata = std::map<std::string, std::string>;

/// A named array in host memory that someone else owns, row-major.
struct Tensor {
  std::string name;
  Buffer buffer;
  Shape shape;  ///< whose product is buffer.count; empty: a scalar
};

/// Of metadata that is dtrun's own: keys begin with it.
constexpr char kOwnPrefix[] = "dtrun.";

/// "f32 (3, 3, 1, 32)"; of a scalar "f32 ()".
std::string Describe(DType dtype, const Shape& shape);

/// The product; false when it does not fit.
bool CountOf(const Shape& shape, uint64_t* count);

/// What is shown of a text that may be anything: its beginning.
std::string Shortened(const std::string& text);

bool IsUtf8(const std::string& text);

/// Throws Error kInvalidArgument (kUnavailable: device memory) that names the first tensor which
/// cannot be written or filled.
void CheckTensors(const std::vector<Tensor>& tensors);
/// Likewise for what a caller wants to be saved.
void CheckMetadata(const Metadata& metadata);

}  // namespace dtrun::runtime

#endif

#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_TENSOR_BYTES_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_TENSOR_BYTES_H_

#include <string>
#include <vector>

#include "runtime/checkpoint/tensor.h"
#include "runtime/checkpoint/tensor_file.h"

namespace dtrun::runtime {

/// Tensors of one dimension as the bytes of a message, and back. Throws Error kSystem for bytes
/// that are none. In front of each tensor stand its dtype, its count and the length of its name, 8
/// bytes each, then its name.
std::string EncodeTensors(const std::vector<Tensor>& tensors);
/// Adds them, and the memory that they lie in, to `tensors`.
void DecodeTensors(const std::string& bytes, TensorFile& tensors);

}  // namespace dtrun::runtime

#endif

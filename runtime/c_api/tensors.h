#ifndef DTRUN_RUNTIME_C_API_TENSORS_H_
#define DTRUN_RUNTIME_C_API_TENSORS_H_

#include <cstddef>
#include <vector>

#include "dtrun/c.h"
#include "runtime/checkpoint/tensor.h"
#include "runtime/checkpoint/tensor_file.h"

namespace dtrun::runtime::c_api {

std::vector<Tensor> ReadTensors(const dtrun_tensor* tensors, size_t count);
Metadata ReadMetadata(const dtrun_metadata* metadata, size_t count);

/// Tensors for the caller, with the memory that they lie in.
dtrun_tensor_file* NewTensorFile(TensorFile file);

/// As C sees it; valid as long as `metadata`.
std::vector<dtrun_metadata> ToC(const Metadata& metadata);

}  // namespace dtrun::runtime::c_api

#endif

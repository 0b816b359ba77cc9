#ifndef DTRUN_RUNTIME_C_API_TENSORS_H_
#define DTRUN_RUNTIME_C_API_TENSORS_H_

#include <cstddef>
#include <vector>

#include "dtrun/c.h"
#include "runtime/checkpoint/tensor.h"

namespace dtrun::runtime::c_api {

std::vector<Tensor> ReadTensors(const dtrun_tensor* tensors, size_t count);
Metadata ReadMetadata(const dtrun_metadata* metadata, size_t count);

/// As C sees it; valid as long as `metadata`.
std::vector<dtrun_metadata> ToC(const Metadata& metadata);

}  // namespace dtrun::runtime::c_api

#endif

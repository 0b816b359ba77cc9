#ifndef DTRUN_MODELS_DATA_IDX_H_
#define DTRUN_MODELS_DATA_IDX_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// Unsigned bytes in `dims`, row-major: the content of an IDX file (the format of MNIST, described
/// at yann.lecun.com/exdb/mnist).
struct IdxArray {
  std::vector<uint64_t> dims;  ///< dims[0] counts the items; none is 0
  std::vector<uint8_t> bytes;  ///< as many as the product of dims
};

/// Reads an IDX file of unsigned bytes with `dimensions` dimensions, gzipped or not. Throws Error,
/// one line with the path, what was found and what was expected: kSystem when the file cannot be
/// opened or read, kInvalidArgument when its content is not such a file, whole and nothing more.
IdxArray ReadIdx(const std::string& path, int dimensions);

/// Only the dimensions, from the file's header; the same errors, as far as the header tells.
std::vector<uint64_t> ReadIdxDims(const std::string& path, int dimensions);

}  // namespace dtrun::models

#endif

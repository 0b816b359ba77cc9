#ifndef DTRUN_TESTS_MODELS_IDX_FILES_H_
#define DTRUN_TESTS_MODELS_IDX_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace dtrun::testing {

/// The path of `name` in `folder`.
std::string operator/(const TemporaryFolder& folder, const std::string& name);

using Bytes = std::vector<uint8_t>;

/// An IDX file's header: magic number, then dimensions.
Bytes IdxHeader(uint32_t magic, const std::vector<uint32_t>& dims);
/// A whole IDX file of unsigned bytes.
Bytes Idx(const std::vector<uint32_t>& dims, const Bytes& elements);
Bytes Gzipped(const Bytes& bytes);
void WriteFile(const std::string& path, const Bytes& bytes);

/// Writes a learnable data set of `count` training and `count` test images of 12x12 in 4 classes.
/// The class is the bright quarter of the image.
void WriteToySet(const TemporaryFolder& folder, uint32_t count);

}  // namespace dtrun::testing

#endif

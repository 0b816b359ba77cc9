#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANIFEST_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// A safetensors file of a checkpoint.
struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  uint32_t header_crc = 0;
};

/// Some elements of a tensor: the whole of a tensor of that name in that file.
struct ManifestPiece {
  uint64_t file = 0;  ///< index
  std::string name;
  uint64_t count = 0;
};

struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<ManifestPiece> pieces;  ///< in the order of the elements
};

/// What makes files a checkpoint: it is written when they are on the disk.
struct Manifest {
  uint64_t sequence = 0;  ///< of all saves into the folder, ascending
  uint64_t step = 0;
  std::optional<double> value = {};
  uint64_t ranks = 0;  ///< that have saved it
  Metadata metadata = {};
  std::vector<ManifestFile> files = {};
  std::vector<ManifestTensor> tensors = {};

  uint64_t bytes() const;
};

constexpr char kManifestName[] = "MANIFEST.json";

/// JSON: {"crc32c": of what follows, "manifest": {...}}
std::string FormatManifest(const Manifest& manifest);
/// Throws Error kInvalidArgument that says what is wrong, or kUnavailable: a later version wrote
/// it.
Manifest ParseManifest(std::string_view text);
/// The same of the inner object, whatever its checksum.
Manifest ParseManifestBody(std::string_view body);

}  // namespace dtrun::runtime

#endif

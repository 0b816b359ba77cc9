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

/// Some elements of a tensor. In its file, the piece is a whole tensor with the piece's name.
struct ManifestPiece {
  uint64_t file = 0;  ///< index of the file
  std::string name;
  uint64_t count = 0;
};

struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<ManifestPiece> pieces;  ///< in the order of the elements
};

/// The description that completes a checkpoint. It is written when all files are on the disk.
struct Manifest {
  uint64_t sequence = 0;  ///< ascends with every save into the folder
  uint64_t step = 0;
  std::optional<double> value = {};
  uint64_t ranks = 0;  ///< the number of ranks that train together
  Metadata metadata = {};
  std::vector<ManifestFile> files = {};
  std::vector<ManifestTensor> tensors = {};

  uint64_t bytes() const;
};

constexpr char kManifestName[] = "MANIFEST.json";

/// JSON: {"crc32c": checksum of the object that follows, "manifest": {...}}
std::string FormatManifest(const Manifest& manifest);
/// Throws Error kInvalidArgument with the reason, or kUnavailable for a format version or dtype
/// that this version of dtrun does not support.
Manifest ParseManifest(std::string_view text);
/// Parses the inner object, without its checksum. Same errors.
Manifest ParseManifestBody(std::string_view body);

}  // namespace dtrun::runtime

#endif

#ifndef DTRUN_RUNTIME_TENSOR_FILE_SAFETENSORS_H_
#define DTRUN_RUNTIME_TENSOR_FILE_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrun/types.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// The largest header of a file in the safetensors format. The file has three parts: 8 bytes (the
/// length of the header, little-endian), the header (a JSON object), and the data of all tensors
/// without gaps.
/// Source: https://github.com/huggingface/safetensors, "Format".
constexpr uint64_t kMostHeaderBytes = 100'000'000;

/// A tensor as the header describes it.
struct TensorEntry {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t begin, end;  ///< byte offsets in the data
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their data
  Metadata metadata;
};

/// The name of the type in a header, for example "F32".
const char* SafetensorsName(DType dtype);

/// Parses the header `text`. The file has `data_bytes` bytes after the header. Throws Error
/// kInvalidArgument with the rule of the format that `text` breaks, or kUnavailable for a type that
/// dtrun does not have.
SafetensorsHeader ParseHeader(std::string_view text, uint64_t data_bytes);

/// A header that is written before the checksums are known. Zeros reserve their places, so the
/// length of the header does not change.
class HeaderDraft {
 public:
  /// The tensors of `header` are in the order of their data.
  explicit HeaderDraft(const SafetensorsHeader& header);

  void SetCrc(size_t tensor, uint32_t crc);
  /// Fills in the checksum of the header. Requires SetCrc for all tensors.
  void Finish();
  /// The length and the header: a multiple of 8 bytes.
  const std::string& bytes() const { return bytes_; }
  /// The checksum of the header.
  uint32_t crc() const { return crc_; }

 private:
  std::string bytes_;
  std::vector<size_t> places_;  // offsets of the digits in bytes_, by tensor
  uint32_t crc_ = 0;
};

/// The checksums in a header that dtrun has written.
struct Checksums {
  bool present = false;
  uint32_t header = 0;
  std::vector<uint32_t> tensors;  ///< in the order of the header's tensors
};

/// Reads the checksums of a header, if any. Throws Error kInvalidArgument if some are missing or
/// the header's checksum is wrong.
Checksums ReadChecksums(std::string_view text, const SafetensorsHeader& header);

/// 8 hexadecimal digits, for example "e3069283".
std::string HexOf(uint32_t crc);

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of the bytes. `before` is the checksum of the
/// preceding bytes.
///
///   Crc32c("123456789", 9)  ->  0xe3069283
uint32_t Crc32c(const void* data, uint64_t bytes, uint32_t before = 0);

/// The same function without CRC instructions of the processor.
uint32_t Crc32cByTable(const void* data, uint64_t bytes, uint32_t before = 0);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_TENSOR_FILE_SAFETENSORS_H_

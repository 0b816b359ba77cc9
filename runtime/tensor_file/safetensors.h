#ifndef DTRUN_RUNTIME_TENSOR_FILE_SAFETENSORS_H_
#define DTRUN_RUNTIME_TENSOR_FILE_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrun/types.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// Of a file in the safetensors format: 8 bytes (the header's length, little-endian), the header (a
/// JSON object), and the data of all tensors without gaps.
/// Source: https://github.com/huggingface/safetensors, "Format".
constexpr uint64_t kMostHeaderBytes = 100'000'000;

/// A tensor as the header has it.
struct TensorEntry {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t begin, end;  ///< bytes of the data
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their data
  Metadata metadata;
};

/// "F32"
const char* SafetensorsName(DType dtype);

/// Throws Error kInvalidArgument, in a sentence that says which rule of the format `text` breaks,
/// or kUnavailable: dtrun has no such type. `data_bytes` is what follows the header in the file.
SafetensorsHeader ParseHeader(std::string_view text, uint64_t data_bytes);

/// A header that is written before the checksums are known. Digits take their place, so that it
/// keeps its length.
class HeaderDraft {
 public:
  /// Tensors in the order of their data.
  explicit HeaderDraft(const SafetensorsHeader& header);

  void SetCrc(size_t tensor, uint32_t crc);
  /// Once all are set. It fills the checksum of the header itself in as well.
  void Finish();
  /// The length and the header, a multiple of 8 bytes.
  const std::string& bytes() const { return bytes_; }
  /// Of the header's text.
  uint32_t crc() const { return crc_; }

 private:
  std::string bytes_;
  std::vector<size_t> places_;  // of the digits in bytes_, by tensor
  uint32_t crc_ = 0;
};

/// What a header written by dtrun says of itself and of its tensors.
struct Checksums {
  bool present = false;
  uint32_t header = 0;
  std::vector<uint32_t> tensors;  ///< in the order of the header's
};

/// Throws Error kInvalidArgument when the header has checksums and they are not all there, or its
/// own is wrong.
Checksums ReadChecksums(std::string_view text, const SafetensorsHeader& header);

/// "e3069283"
std::string HexOf(uint32_t crc);

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of the bytes. `before`: that of the bytes in front
/// of them.
///
///   Crc32c("123456789", 9)  ->  0xe3069283
uint32_t Crc32c(const void* data, uint64_t bytes, uint32_t before = 0);

/// The same without instructions of the processor's for it.
uint32_t Crc32cByTable(const void* data, uint64_t bytes, uint32_t before = 0);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_TENSOR_FILE_SAFETENSORS_H_

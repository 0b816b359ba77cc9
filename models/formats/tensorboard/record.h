#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_RECORD_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrun::models {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
uint32_t Crc32c(std::string_view bytes);

/// `data` as a record of a TFRecord file, which is what event files consist of:
///   length (8 bytes) | masked CRC-32C of these | data | masked CRC-32C of data
/// all little-endian. Masked: rotated right by 15 bits, plus 0xa282ead8, so that the checksum of
/// bytes which contain checksums stays a good one.
std::string ToRecord(std::string_view data);

}  // namespace dtrun::models

#endif

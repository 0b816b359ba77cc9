#ifndef DTRUN_RUNTIME_CHECKPOINT_CRC32C_H_
#define DTRUN_RUNTIME_CHECKPOINT_CRC32C_H_

#include <cstdint>

namespace dtrun::runtime {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of the bytes. `before`: that of the bytes in front
/// of them.
///
///   Crc32c("123456789", 9)  ->  0xe3069283
uint32_t Crc32c(const void* data, uint64_t bytes, uint32_t before = 0);

/// The same without instructions of the processor's for it.
uint32_t Crc32cByTable(const void* data, uint64_t bytes, uint32_t before = 0);

}  // namespace dtrun::runtime

#endif

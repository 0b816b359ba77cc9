#include "runtime/checkpoint/crc32c.h"

#include <array>
#include <cstring>

namespace dtrun::runtime {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) uint32_t Crc32cByInstruction(
    const void* data, uint64_t bytes, uint32_t before) {
  const auto* next = static_cast<const unsigned char*>(data);
  uint64_t crc = ~before;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), next += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, next, sizeof word);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  auto rest = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes, ++next) rest = __builtin_ia32_crc32qi(rest, *next);
  return ~rest;
}

bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }

#else

uint32_t Crc32cByInstruction(const void* data, uint64_t bytes, uint32_t before) {
  return Crc32cByTable(data, bytes, before);
}

bool HasInstruction() { return false; }

#endif

}  // namespace

uint32_t Crc32cByTable(const void* data, uint64_t bytes, uint32_t before) {
  const auto* next = static_cast<const unsigned char*>(data);
  uint32_t crc = ~before;
  for (; bytes > 0; --bytes, ++next) crc = (crc >> 8) ^ kTable[(crc ^ *next) & 0xff];
  return ~crc;
}

uint32_t Crc32c(const void* data, uint64_t bytes, uint32_t before) {
  static const bool has_instruction = HasInstruction();
  return has_instruction ? Crc32cByInstruction(data, bytes, before)
                         : Crc32cByTable(data, bytes, before);
}

}  // namespace dtrun::runtime

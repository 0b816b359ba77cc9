#include "models/formats/tensorboard/record.h"

#include <array>
#include <bit>

namespace dtrun::models {
namespace {

// Of each byte: eight steps of the division by the polynomial, bits reversed.
constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

std::string LittleEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string MaskedCrc(std::string_view bytes) {
  return LittleEndian(std::rotr(Crc32c(bytes), 15) + 0xa282ead8, 4);
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t rest = ~uint32_t{0};
  for (char byte : bytes) rest = rest >> 8 ^ kTable[(rest ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~rest;
}

std::string ToRecord(std::string_view data) {
  const std::string length = LittleEndian(data.size(), 8);
  std::string record = length + MaskedCrc(length);
  record += data;
  return record + MaskedCrc(data);
}

}  // namespace dtrun::models

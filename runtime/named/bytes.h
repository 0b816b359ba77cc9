#ifndef DTRUN_RUNTIME_NAMED_BYTES_H_
#define DTRUN_RUNTIME_NAMED_BYTES_H_

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrun/error.h"

namespace dtrun::runtime::named {

/// Numbers and names as bytes: small numbers take one.
class ByteWriter {
 public:
  void Number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void Signed(int64_t value) {
    Number(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  void Fixed(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> 8 * i);
  }
  void Real(double value) { Fixed(std::bit_cast<uint64_t>(value)); }
  void Name(std::string_view name) {
    Number(name.size());
    bytes_ += name;
  }

  const std::string& bytes() const { return bytes_; }
  void Clear() { bytes_.clear(); }

 private:
  std::string bytes_;
};

/// The reverse. Throws Error kSystem when the bytes end too early: no rank of this build wrote
/// them.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  uint64_t Number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw Damaged();
  }
  int64_t Signed() {
    const uint64_t value = Number();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  uint64_t Fixed() {
    const std::string_view bytes = Take(8);
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << 8 * i;
    }
    return value;
  }
  double Real() { return std::bit_cast<double>(Fixed()); }
  std::string_view Name() { return Take(Number()); }

 private:
  static Error Damaged() {
    return Error(ErrorCode::kSystem, "named queue: what a rank announced cannot be read");
  }
  std::string_view Take(uint64_t count) {
    if (count > rest_.size()) throw Damaged();
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace dtrun::runtime::named

#endif

#include "runtime/reducer/wire_compression.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/reduce/reduce.h"
#include "runtime/device/block_device.h"

namespace dtrun::runtime {
namespace {

// Rounds f64 to f32, to odd: a result that is not exact gets an odd last bit. Then rounding the
// result to 16 bits gives the same bits as rounding the f64 itself to 16 bits.
float RoundedToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  uint32_t bits = 0;
  std::memcpy(&bits, &nearest, sizeof bits);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // toward zero
  bits |= 1;
  float odd = 0;
  std::memcpy(&odd, &bits, sizeof odd);
  return odd;
}

class Cast : public WireFormat {
 public:
  explicit Cast(DType wire) : wire_(wire) {}
  std::string description() const override { return NameOf(wire_); }
  DType dtype() const override { return wire_; }
  uint64_t Count(size_t, const Buffer& gradients) override { return gradients.count; }
  bool IsElementwise() const override { return true; }

  void Compress(size_t, const Buffer& gradients, const Buffer& wire) override {
    if (gradients.dtype == DType::kF32)
      return ops::Convert(gradients.data, DType::kF32, wire.data, wire_, wire.count);
    const auto* values = static_cast<const double*>(gradients.data);
    ByPieces(wire, [&](uint64_t first, uint64_t count, void* narrow) {
      for (uint64_t k = 0; k < count; ++k) piece_[k] = RoundedToOdd(values[first + k]);
      ops::Convert(piece_, DType::kF32, narrow, wire_, count);
    });
  }

  void Decompress(size_t, const Buffer& wire, const Buffer& gradients) override {
    if (gradients.dtype == DType::kF32)
      return ops::Convert(wire.data, wire_, gradients.data, DType::kF32, wire.count);
    auto* values = static_cast<double*>(gradients.data);
    ByPieces(wire, [&](uint64_t first, uint64_t count, const void* narrow) {
      ops::Convert(narrow, wire_, piece_, DType::kF32, count);
      std::copy(piece_, piece_ + count, values + first);
    });
  }

 private:
  static constexpr uint64_t kPiece = 1024;  // elements

  template <typename Body>
  static void ByPieces(const Buffer& wire, const Body& body) {
    for (uint64_t first = 0; first < wire.count; first += kPiece) {
      const uint64_t count = std::min(kPiece, wire.count - first);
      body(first, count, wire.Slice(first, count).data);
    }
  }

  DType wire_;
  float piece_[kPiece] = {};
};

}  // namespace

std::shared_ptr<WireFormat> CreateCast(DType wire) { return std::make_shared<Cast>(wire); }

bool IsCompressed(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

// Only floats have an exponent.
bool CarriesFlags(const WireFormat& format) { return ExponentOf(format.dtype()) != 0; }

}  // namespace dtrun::runtime

#include "models/formats/protobuf.h"

#include <bit>

namespace dtrun::models {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

}  // namespace

// Each byte holds seven bits, the lowest first. The eighth bit says that more bytes follow.
void ProtobufWriter::Varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(0x80 | (value & 0x7f));
  bytes_ += static_cast<char>(value);
}

// Little-endian on every machine.
template <typename Bits>
void ProtobufWriter::Fixed(Bits bits) {
  for (size_t i = 0; i < sizeof(Bits); ++i) bytes_ += static_cast<char>(bits >> (8 * i));
}

void ProtobufWriter::Tag(int field, int wire_type) {
  Varint(uint64_t(field) << 3 | uint64_t(wire_type));
}

void ProtobufWriter::Int(int field, int64_t value) {
  Tag(field, kVarint);
  Varint(static_cast<uint64_t>(value));
}

void ProtobufWriter::Float(int field, float value) {
  Tag(field, kFixed32);
  Fixed(std::bit_cast<uint32_t>(value));
}

void ProtobufWriter::Double(int field, double value) {
  Tag(field, kFixed64);
  Fixed(std::bit_cast<uint64_t>(value));
}

void ProtobufWriter::Bytes(int field, std::string_view value) {
  Tag(field, kLengthDelimited);
  Varint(value.size());
  bytes_ += value;
}

void ProtobufWriter::Ints(int field, std::span<const int64_t> values) {
  ProtobufWriter packed;
  for (int64_t value : values) packed.Varint(static_cast<uint64_t>(value));
  Bytes(field, packed.bytes());
}

void ProtobufWriter::Doubles(int field, std::span<const double> values) {
  ProtobufWriter packed;
  for (double value : values) packed.Fixed(std::bit_cast<uint64_t>(value));
  Bytes(field, packed.bytes());
}

}  // namespace dtrun::models

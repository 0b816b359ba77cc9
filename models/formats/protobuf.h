#ifndef DTRUN_MODELS_FORMATS_PROTOBUF_H_
#define DTRUN_MODELS_FORMATS_PROTOBUF_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dtrun::models {

/// Writes one message in the wire format of Protocol Buffers (protobuf.dev, "Encoding"). Supports
/// only the types that TensorBoard's and ONNX's messages need. The caller gives field numbers.
/// Every field is written, in the order of the calls, even with its default value. Not thread-safe.
///
///   ProtobufWriter dimension;
///   dimension.Int(1, 28);
///   ProtobufWriter shape;
///   shape.Message(2, dimension);
class ProtobufWriter {
 public:
  /// For int32, int64, bool and enum: a varint. A negative number takes ten bytes.
  void Int(int field, int64_t value);
  void Float(int field, float value);
  void Double(int field, double value);
  /// For string and bytes.
  void Bytes(int field, std::string_view value);
  void Message(int field, const ProtobufWriter& message) { Bytes(field, message.bytes()); }
  /// For repeated fields, packed.
  void Ints(int field, std::span<const int64_t> values);
  void Doubles(int field, std::span<const double> values);

  const std::string& bytes() const { return bytes_; }

 private:
  void Tag(int field, int wire_type);
  void Varint(uint64_t value);
  template <typename Bits>
  void Fixed(Bits bits);

  std::string bytes_;
};

}  // namespace dtrun::models

#endif

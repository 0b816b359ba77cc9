#include "runtime/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/checkpoint/crc32c.h"
#include "runtime/checkpoint/header_reader.h"

namespace dtrun::runtime {
namespace {

using base::Text;

constexpr char kCrcKey[] = "dtrun.crc32c";
constexpr char kNoCrc[] = "00000000";
constexpr size_t kCrcDigits = 8;
// How a header of dtrun's begins; then come the digits of its own checksum.
constexpr std::string_view kFirst = R"({"__metadata__":{"dtrun.crc32c":")";

[[noreturn]] void Refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, Shortened(why));
}

std::string TensorCrcKey(const std::string& name) { return Text(kCrcKey, ':', name); }

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::optional<uint32_t> ParseHex(std::string_view digits) {
  uint32_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
  if (error != std::errc() || stop != end || digits.size() != kCrcDigits) return std::nullopt;
  return value;
}

// The header's own checksum is that of the header with zeros in its place.
uint32_t CrcOfHeader(std::string_view text) {
  const uint32_t first = Crc32c(text.data(), kFirst.size());
  const uint32_t zeros = Crc32c(kNoCrc, kCrcDigits, first);
  const std::string_view rest = text.substr(kFirst.size() + kCrcDigits);
  return Crc32c(rest.data(), rest.size(), zeros);
}

// Sorted by offset each begins where the one before it ended, the first at 0, the last ends with
// the file; and each has as many bytes as its shape.
void CheckOffsets(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    uint64_t count = 0, bytes = 0;
    if (tensor.begin != at || tensor.end < tensor.begin)
      Refuse(Text(
          "the header: tensor '", tensor.name, "' lies at [", tensor.begin, ", ", tensor.end,
          "); expected it to begin at ", at, ", where the one before it ends"));
    if (!CountOf(tensor.shape, &count) ||
        __builtin_mul_overflow(count, SizeOf(tensor.dtype), &bytes) ||
        bytes != tensor.end - tensor.begin)
      Refuse(Text(
          "the header: tensor '", tensor.name, "', ", Describe(tensor.dtype, tensor.shape),
          ", lies at [", tensor.begin, ", ", tensor.end, "); expected as many bytes as its shape"));
    at = tensor.end;
  }
  if (at != data_bytes)
    Refuse(Text("the header tells of ", at, " bytes of data, and ", data_bytes, " follow"));
}

}  // namespace

std::string HexOf(uint32_t crc) {
  std::array<char, kCrcDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", crc);
  return digits.data();
}

const char* SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kU8: return "U8";
    case DType::kI8: return "I8";
    case DType::kU16: return "U16";
    case DType::kI16: return "I16";
    case DType::kU32: return "U32";
    case DType::kI32: return "I32";
    case DType::kU64: return "U64";
    case DType::kI64: return "I64";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kF32: return "F32";
    case DType::kF64: return "F64";
    case DType::kBool: return "BOOL";
  }
  return "";
}

SafetensorsHeader ParseHeader(std::string_view text, uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') Refuse("the header does not begin with '{'");
  SafetensorsHeader header = ReadHeaderJson(text);
  // Of tensors without elements several may begin at the same place.
  std::stable_sort(
      header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
      });
  CheckOffsets(header.tensors, data_bytes);
  return header;
}

HeaderDraft::HeaderDraft(const SafetensorsHeader& header) {
  std::string text = Text(kFirst, kNoCrc, '"');
  for (const TensorEntry& tensor : header.tensors) {
    text += Text(',', Quoted(TensorCrcKey(tensor.name)), ":\"");
    places_.push_back(sizeof(uint64_t) + text.size());
    text += Text(kNoCrc, '"');
  }
  for (const auto& [key, value] : header.metadata)
    text += Text(',', Quoted(key), ':', Quoted(value));
  text += '}';
  for (const TensorEntry& tensor : header.tensors)
    text += Text(
        ',', Quoted(tensor.name), R"(:{"dtype":")", SafetensorsName(tensor.dtype), R"(","shape":)",
        nlohmann::json(tensor.shape).dump(), R"(,"data_offsets":[)", tensor.begin, ',', tensor.end,
        "]}");
  text += '}';
  while (text.size() % 8 != 0) text += ' ';
  if (text.size() > kMostHeaderBytes)
    Refuse(Text(
        "names and metadata take ", text.size(), " bytes; expected ", kMostHeaderBytes,
        " at most"));
  const uint64_t length = text.size();
  bytes_.assign(reinterpret_cast<const char*>(&length), sizeof length);
  bytes_ += text;
}

void HeaderDraft::SetCrc(size_t tensor, uint32_t crc) {
  bytes_.replace(places_[tensor], kCrcDigits, HexOf(crc));
}

void HeaderDraft::Finish() {
  crc_ = CrcOfHeader(std::string_view(bytes_).substr(sizeof(uint64_t)));
  bytes_.replace(sizeof(uint64_t) + kFirst.size(), kCrcDigits, HexOf(crc_));
}

Checksums ReadChecksums(std::string_view text, const SafetensorsHeader& header) {
  const auto own = [](const auto& entry) { return entry.first.starts_with(kCrcKey); };
  Checksums sums;
  sums.present = std::any_of(header.metadata.begin(), header.metadata.end(), own);
  if (!sums.present) return sums;
  if (!text.starts_with(kFirst) || text.size() < kFirst.size() + kCrcDigits)
    Refuse(
        "the header's checksum is not where dtrun writes it: something else has changed the file");
  const auto told = ParseHex(text.substr(kFirst.size(), kCrcDigits));
  sums.header = CrcOfHeader(text);
  if (told != sums.header)
    Refuse(Text(
        "the header has CRC32C ", HexOf(sums.header), "; expected ",
        text.substr(kFirst.size(), kCrcDigits)));
  for (const TensorEntry& tensor : header.tensors) {
    const auto found = header.metadata.find(TensorCrcKey(tensor.name));
    const auto crc = found == header.metadata.end() ? std::nullopt : ParseHex(found->second);
    if (!crc) Refuse(Text("the header has no checksum of tensor '", tensor.name, "'"));
    sums.tensors.push_back(*crc);
  }
  return sums;
}

}  // namespace dtrun::runtime

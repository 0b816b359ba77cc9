// ReadHeaderJson parses the JSON of a header. CheckOffsets then compares the offsets with the
// shapes and with the size of the data. ReadChecksums reads the checksums, which dtrun stores as
// metadata with a fixed number of digits. So a draft of a header has its final length.

#include "runtime/tensor_file/safetensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {

/// Parses the JSON of a safetensors header. Does not compare the offsets and shapes with anything.
/// Takes memory in proportion to the well-formed beginning of `text`. Errors: those of ParseHeader.
SafetensorsHeader ReadHeaderJson(std::string_view text);

namespace {

using base::Text;

constexpr char kCrcKey[] = "dtrun.crc32c";
constexpr char kNoCrc[] = "00000000";
constexpr size_t kCrcDigits = 8;
// The beginning of a header that dtrun writes. The digits of the header's checksum follow.
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

// The header's checksum is computed with zeros in place of its digits.
uint32_t CrcOfHeader(std::string_view text) {
  const uint32_t first = Crc32c(text.data(), kFirst.size());
  const uint32_t zeros = Crc32c(kNoCrc, kCrcDigits, first);
  const std::string_view rest = text.substr(kFirst.size() + kCrcDigits);
  return Crc32c(rest.data(), rest.size(), zeros);
}

// The tensors are sorted by offset. The first must begin at 0, and each of the others at the end of
// the tensor before it. The last must end with the file. Each has as many bytes as its shape.
void CheckOffsets(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    uint64_t count = 0, bytes = 0;
    if (tensor.begin != at || tensor.end < tensor.begin)
      Refuse(Text(
          "the header: tensor '", tensor.name, "' lies at [", tensor.begin, ", ", tensor.end,
          "); expected a begin at ", at, ", where the tensor before ends"));
    if (!CountOf(tensor.shape, &count) ||
        __builtin_mul_overflow(count, SizeOf(tensor.dtype), &bytes) ||
        bytes != tensor.end - tensor.begin)
      Refuse(Text(
          "the header: tensor '", tensor.name, "', ", Describe(tensor.dtype, tensor.shape),
          ", lies at [", tensor.begin, ", ", tensor.end, "); expected as many bytes as its shape"));
    at = tensor.end;
  }
  if (at != data_bytes)
    Refuse(Text("the header describes ", at, " bytes of data; found ", data_bytes));
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
  // Several tensors without elements may begin at the same offset.
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
        "the checksum of the header is at another place than dtrun writes: another program has "
        "changed the file");
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

// The header is parsed event by event, never as a tree. HeaderEvents knows the allowed next events
// at every point, and refuses the header at the first other event. So the depth and size of the
// rest do not matter.

namespace {

using base::Text;

[[noreturn]] void RefuseHeader(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "the header: " + why);
}

// The beginning of a name, for an error message: a name may be of any length.
std::string Shown(const std::string& name) {
  constexpr size_t kMost = 100;
  return name.size() <= kMost ? name : name.substr(0, kMost) + "...";
}

DType DTypeNamed(const std::string& name, const std::string& tensor) {
  for (int32_t i = DTRUN_U8; i <= DTRUN_BOOL; ++i)
    if (name == SafetensorsName(static_cast<DType>(i))) return static_cast<DType>(i);
  throw Error(
      ErrorCode::kUnavailable, Text(
                                   "the header: tensor '", Shown(tensor), "' has dtype '",
                                   Shown(name), "', which dtrun does not have"));
}

class HeaderEvents : public nlohmann::json::json_sax_t {
 public:
  SafetensorsHeader Take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ != Place::kEntry) {
      return Unexpected("an object");
    } else if (name_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else {
      BeginTensor();
      place_ = Place::kTensor;
    }
    return true;
  }
  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(key).second) RefuseHeader(Text("'", Shown(key), "' occurs twice"));
      name_ = key;
      place_ = Place::kEntry;
    } else if (place_ == Place::kMetadata) {
      name_ = key;
      place_ = Place::kMetadataValue;
    } else {
      BeginMember(key);
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTensor) EndTensor();
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadataValue) {
      if (!header_.metadata.emplace(name_, value).second)
        RefuseHeader(Text("metadata '", Shown(name_), "' occurs twice"));
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ != Place::kDType) return Unexpected("a string");
    tensor_.dtype = DTypeNamed(value, tensor_.name);
    place_ = Place::kTensor;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kShape) {
      place_ = Place::kShapeItems;
    } else if (place_ == Place::kOffsets) {
      place_ = Place::kOffsetItems;
    } else {
      return Unexpected("an array");
    }
    return true;
  }
  bool end_array() override {
    if (place_ == Place::kOffsetItems && offsets_.size() != 2)
      RefuseHeader(Text("tensor '", Shown(tensor_.name), "' does not have two data_offsets"));
    place_ = Place::kTensor;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShapeItems) {
      tensor_.shape.push_back(value);
    } else if (place_ == Place::kOffsetItems && offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      return Unexpected("a number");
    }
    return true;
  }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    RefuseHeader(Text("found invalid JSON or UTF-8 at byte ", at));
  }

 private:
  enum class Place {
    kStart,
    kTop,    // a name or the end
    kEntry,  // a tensor or the metadata
    kMetadata,
    kMetadataValue,
    kTensor,  // a member of the tensor, or the end
    kDType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kEnd,
  };

  bool Unexpected(const char* what) const {
    RefuseHeader(Text(what, " where none is expected, near '", Shown(name_), "'"));
  }

  void BeginTensor() {
    if (name_.empty()) RefuseHeader("a tensor has no name");
    tensor_ = {.name = name_, .dtype = DType::kU8, .shape = {}, .begin = 0, .end = 0};
    offsets_.clear();
    members_.clear();
  }
  void BeginMember(const std::string& member) {
    if (!members_.insert(member).second)
      RefuseHeader(Text("tensor '", Shown(tensor_.name), "' has ", Shown(member), " twice"));
    if (member == "dtype") {
      place_ = Place::kDType;
    } else if (member == "shape") {
      place_ = Place::kShape;
    } else if (member == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      RefuseHeader(Text(
          "tensor '", Shown(tensor_.name), "' has '", Shown(member),
          "'; expected dtype, shape and data_offsets"));
    }
  }
  void EndTensor() {
    if (members_.size() != 3)
      RefuseHeader(
          Text("tensor '", Shown(tensor_.name), "' lacks its dtype, shape or data_offsets"));
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  std::string name_;
  std::set<std::string> names_;
  TensorEntry tensor_{};
  std::vector<uint64_t> offsets_;
  std::set<std::string> members_;
};

}  // namespace

SafetensorsHeader ReadHeaderJson(std::string_view text) {
  HeaderEvents events;
  nlohmann::json::sax_parse(text, &events);
  return events.Take();
}

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

#include "runtime/checkpoint/checkpoint_manifest.h"

#include <cmath>

#include "base/json.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "runtime/tensor_file/safetensors.h"

namespace dtrun::runtime {
namespace {

using base::ParseJson;
using base::Text;
using nlohmann::json;

constexpr uint64_t kVersion = 1;
constexpr char kFormat[] = "dtrun checkpoint";
// The text around the checksum's digits and around the body.
constexpr std::string_view kBegin = R"({"crc32c":")";
constexpr std::string_view kMiddle = R"(","manifest":)";
constexpr std::string_view kEnd = "}\n";
constexpr size_t kCrcDigits = 8;

[[noreturn]] void RefuseManifest(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, Shortened(why));
}

uint64_t Unsigned(const json& value) {
  if (!value.is_number_unsigned())
    RefuseManifest("found a number that is not a whole number of at least 0");
  return value.get<uint64_t>();
}

DType DTypeNamed(const std::string& name) {
  for (int32_t i = DTRUN_U8; i <= DTRUN_BOOL; ++i)
    if (name == SafetensorsName(static_cast<DType>(i))) return static_cast<DType>(i);
  throw Error(
      ErrorCode::kUnavailable,
      Text("found the dtype '", Shortened(name), "', which dtrun does not have"));
}

json ToJson(const ManifestFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"header_crc32c", file.header_crc}};
}

json ToJson(const ManifestTensor& tensor) {
  json pieces = json::array();
  for (const ManifestPiece& piece : tensor.pieces)
    pieces.push_back({{"file", piece.file}, {"name", piece.name}, {"count", piece.count}});
  return {
      {"name", tensor.name},
      {"dtype", SafetensorsName(tensor.dtype)},
      {"shape", tensor.shape},
      {"pieces", pieces}};
}

ManifestFile FileOf(const json& told) {
  const ManifestFile file{
      told.at("name").get<std::string>(), Unsigned(told.at("bytes")),
      static_cast<uint32_t>(Unsigned(told.at("header_crc32c")))};
  if (file.name.empty() || file.name.front() == '.' || file.name.find('/') != std::string::npos)
    RefuseManifest(
        Text("found the file '", file.name, "'; expected a file in the folder of the checkpoint"));
  return file;
}

ManifestTensor TensorOf(const json& told, size_t files) {
  ManifestTensor tensor{
      .name = told.at("name").get<std::string>(),
      .dtype = DTypeNamed(told.at("dtype").get<std::string>()),
      .shape = {},
      .pieces = {}};
  for (const json& size : told.at("shape")) tensor.shape.push_back(Unsigned(size));
  uint64_t count = 0, of_pieces = 0;
  for (const json& piece : told.at("pieces")) {
    tensor.pieces.push_back(
        {Unsigned(piece.at("file")), piece.at("name").get<std::string>(),
         Unsigned(piece.at("count"))});
    if (tensor.pieces.back().file >= files)
      RefuseManifest(
          Text("tensor '", tensor.name, "' lies in a file that the manifest does not list"));
    if (__builtin_add_overflow(of_pieces, tensor.pieces.back().count, &of_pieces))
      RefuseManifest(Text("tensor '", tensor.name, "' has more elements than 64 bits can count"));
  }
  if (!CountOf(tensor.shape, &count) || count != of_pieces || tensor.pieces.empty())
    RefuseManifest(Text(
        "tensor '", tensor.name, "' is ", Describe(tensor.dtype, tensor.shape),
        " and has pieces of ", of_pieces,
        " elements in all; expected as many elements as the shape has"));
  return tensor;
}

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t sum = 0;
  for (const ManifestFile& file : files) sum += file.bytes;
  return sum;
}

std::string FormatManifest(const Manifest& manifest) {
  json body = {
      {"format", kFormat},       {"version", kVersion},
      {"dtrun", base::kVersion}, {"sequence", manifest.sequence},
      {"step", manifest.step},   {"value", manifest.value ? json(*manifest.value) : json()},
      {"ranks", manifest.ranks}, {"metadata", manifest.metadata},
      {"files", json::array()},  {"tensors", json::array()},
  };
  for (const ManifestFile& file : manifest.files) body["files"].push_back(ToJson(file));
  for (const ManifestTensor& tensor : manifest.tensors) body["tensors"].push_back(ToJson(tensor));
  const std::string text = body.dump();
  return Text(kBegin, HexOf(Crc32c(text.data(), text.size())), kMiddle, text, kEnd);
}

Manifest ParseManifest(std::string_view text) {
  constexpr size_t kBody = kBegin.size() + kCrcDigits + kMiddle.size();
  if (text.size() < kBody + kEnd.size() || !text.starts_with(kBegin) || !text.ends_with(kEnd) ||
      text.substr(kBegin.size() + kCrcDigits, kMiddle.size()) != kMiddle)
    RefuseManifest(Text("found ", text.size(), " bytes that are not a whole manifest"));
  const std::string_view told = text.substr(kBegin.size(), kCrcDigits);
  const std::string_view body = text.substr(kBody, text.size() - kBody - kEnd.size());
  const std::string found = HexOf(Crc32c(body.data(), body.size()));
  if (found != told) RefuseManifest(Text("found CRC32C ", found, "; expected ", told));
  return ParseManifestBody(body);
}

Manifest ParseManifestBody(std::string_view body) {
  try {
    const json told = ParseJson(body);
    if (told.at("format").get<std::string>() != kFormat)
      RefuseManifest(Text("found another format; expected '", kFormat, "'"));
    const uint64_t version = Unsigned(told.at("version"));
    if (version != kVersion)
      throw Error(
          ErrorCode::kUnavailable, Text(
                                       "found version ", version, "; this dtrun (", base::kVersion,
                                       ") reads version ", kVersion));
    Manifest manifest{
        .sequence = Unsigned(told.at("sequence")),
        .step = Unsigned(told.at("step")),
        .ranks = Unsigned(told.at("ranks")),
        .metadata = told.at("metadata").get<Metadata>(),
    };
    if (!told.at("value").is_null()) manifest.value = told.at("value").get<double>();
    for (const json& file : told.at("files")) manifest.files.push_back(FileOf(file));
    for (const json& tensor : told.at("tensors"))
      manifest.tensors.push_back(TensorOf(tensor, manifest.files.size()));
    return manifest;
  } catch (const json::exception& error) {
    RefuseManifest(Text("found an invalid manifest: ", error.what()));
  }
}

}  // namespace dtrun::runtime

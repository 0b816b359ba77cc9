// Files in the safetensors format, exchanged with the Python library of the format.

#include <dtrun/tensors.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/json.h"
#include "tests/support/python.h"

namespace dtrun::testing {
namespace {

using nlohmann::json;

std::string HexOf(const Buffer& buffer) {
  std::string text;
  for (uint64_t i = 0; i < buffer.bytes(); ++i) {
    const unsigned byte = static_cast<const unsigned char*>(buffer.data)[i];
    text += {"0123456789abcdef"[byte / 16], "0123456789abcdef"[byte % 16]};
  }
  return text;
}

TEST_CASE("files of dtrun and of the safetensors library can be read by each other") {
  if (PythonIsMissing()) return;
  const TemporaryFolder folder;
  std::vector<uint8_t> bytes(96);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i % 2);
  const std::vector<std::pair<DType, std::string>> types = {
      {DType::kU8, "uint8"},      {DType::kI8, "int8"},     {DType::kU16, "uint16"},
      {DType::kI16, "int16"},     {DType::kU32, "uint32"},  {DType::kI32, "int32"},
      {DType::kU64, "uint64"},    {DType::kI64, "int64"},   {DType::kF16, "float16"},
      {DType::kBF16, "bfloat16"}, {DType::kF32, "float32"}, {DType::kF64, "float64"},
      {DType::kBool, "bool"}};
  std::vector<NamedTensor> tensors;
  for (const auto& [dtype, name] : types)
    tensors.emplace_back(name, Buffer(bytes.data(), 12, dtype), std::vector<uint64_t>{3, 2, 2});
  tensors.emplace_back(
      "a scalar, \"quoted\" \xc3\xbc", Buffer(bytes.data(), 1, DType::kF32),
      std::vector<uint64_t>{});
  tensors.emplace_back("nothing", Buffer(nullptr, 0, DType::kF32), std::vector<uint64_t>{0, 5});
  SaveTensors(folder.path() + "/ours.safetensors", tensors, {{"epoch", "3"}});

  const CommandResult result = RunPython({"tests/runtime/use_safetensors.py", folder.path()});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json found = ParseJson(result.out);
  CHECK(found["metadata"] == json{{"epoch", "3"}});
  CHECK(found["tensors"].size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    CAPTURE(tensor.name);
    const std::string type = i < types.size() ? types[i].second : "float32";
    CHECK(found["tensors"][tensor.name] == json{type, tensor.shape, HexOf(tensor.buffer)});
  }

  const dtrun::TensorFile theirs = LoadTensors(folder.path() + "/theirs.safetensors");
  CHECK(theirs.metadata() == Metadata{{"format", "np"}});
  for (const NamedTensor& tensor : tensors) {
    CAPTURE(tensor.name);
    const NamedTensor* read = theirs.Find(tensor.name);
    REQUIRE(read != nullptr);
    CHECK(read->shape == tensor.shape);
    CHECK(read->buffer.dtype == tensor.buffer.dtype);
    CHECK(HexOf(read->buffer) == HexOf(tensor.buffer));
  }
}

}  // namespace
}  // namespace dtrun::testing

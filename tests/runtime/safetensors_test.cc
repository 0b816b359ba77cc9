// Writing, reading and refusing files in the safetensors format, and the plan of checkpoint shards.

#include "runtime/tensor_file/safetensors.h"

#include <dtrun/tensors.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>

#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using runtime::TensorPiece;
using Pieces = std::vector<std::vector<TensorPiece>>;

TEST_CASE("CRC-32C matches RFC 3720 with and without the instruction of the processor") {
  CHECK(runtime::Crc32c("123456789", 9) == 0xe3069283);
  const std::string zeros(32, '\0');
  CHECK(runtime::Crc32c(zeros.data(), 32) == 0x8a9136aa);
  CHECK(runtime::Crc32cByTable(zeros.data(), 32) == 0x8a9136aa);
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes += static_cast<char>(i * 37);
  for (size_t first = 0; first < 9; ++first)
    for (size_t cut = first; cut < bytes.size(); cut += 7) {
      const uint32_t begin = runtime::Crc32c(bytes.data() + first, cut - first);
      const uint32_t all = runtime::Crc32c(bytes.data() + cut, bytes.size() - cut, begin);
      CHECK(all == runtime::Crc32cByTable(bytes.data() + first, bytes.size() - first));
    }
}

TEST_CASE("a written file follows the format") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a.safetensors";
  uint8_t bytes[3] = {1, 2, 3};
  double numbers[2] = {0.5, -1};
  SaveTensors(
      path, {{"b", Buffer(bytes, 3), {3, 1}}, {"n", Buffer(numbers, 2)}, {"e", Buffer(bytes, 0)}},
      {{"note", "hi"}});
  const std::string text = ReadText(path);
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  REQUIRE(length % 8 == 0);
  const std::string header = text.substr(8, length);
  CHECK_THAT(
      header, Catch::Matchers::StartsWith(R"({"__metadata__":{"dtrun.crc32c":")") &&
                  Contains(R"("note":"hi"})") &&
                  Contains(R"("n":{"dtype":"F64","shape":[2],"data_offsets":[0,16]})") &&
                  Contains(R"("b":{"dtype":"U8","shape":[3,1],"data_offsets":[16,19]})") &&
                  Contains(R"("e":{"dtype":"U8","shape":[0],"data_offsets":[19,19]})"));
  CHECK(text.size() == 8 + length + 19);
  CHECK(std::memcmp(text.data() + 8 + length, numbers, 16) == 0);
  CHECK(folder.Entries() == std::vector<std::string>{"a.safetensors"});

  const dtrun::TensorFile read = LoadTensors(path);
  REQUIRE(read.tensors().size() == 3);
  CHECK(read.metadata() == Metadata{{"note", "hi"}});
  const NamedTensor* b = read.Find("b");
  REQUIRE(b != nullptr);
  CHECK(b->shape == std::vector<uint64_t>{3, 1});
  CHECK(std::memcmp(b->buffer.data, bytes, 3) == 0);
  CHECK(read.Find("none") == nullptr);
}

TEST_CASE("all types are loaded with the saved bytes") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a";
  std::vector<char> data(80);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i);
  std::vector<NamedTensor> tensors;
  for (int32_t i = DTRUN_U8; i <= DTRUN_BOOL; ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.emplace_back(NameOf(dtype), Buffer(data.data(), 5, dtype));
  }
  SaveTensors(path, tensors);
  const dtrun::TensorFile read = LoadTensors(path);
  for (const NamedTensor& tensor : tensors) {
    const NamedTensor* found = read.Find(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(found->buffer.dtype == tensor.buffer.dtype);
    CHECK(reinterpret_cast<uintptr_t>(found->buffer.data) % SizeOf(tensor.buffer.dtype) == 0);
    CHECK(std::memcmp(found->buffer.data, data.data(), tensor.buffer.bytes()) == 0);
  }
}

TEST_CASE("a failed write leaves no file behind") {
  const TemporaryFolder folder;
  float value = 1;
  CHECK_THROWS_WITH(
      SaveTensors(folder.path() + "/no/a", {{"w", Buffer(&value, 1)}}),
      Contains("cannot write '" + folder.path() + "/no/a.tmp-") &&
          Contains("No such file or directory"));
  CHECK_THROWS_WITH(LoadTensors(folder.path() + "/b"), Contains("No such file or directory"));
  CHECK(folder.Entries().empty());
}

// The error of a file with this header and `data_bytes` bytes of data, "" if the file is read.
std::string RefusalOf(const std::string& header, size_t data_bytes, uint64_t length = UINT64_MAX) {
  const TemporaryFolder folder;
  if (length == UINT64_MAX) length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  const std::string path = folder.Write("a", text + header + std::string(data_bytes, '\7'));
  try {
    LoadTensors(path);
    return "";
  } catch (const Error& error) {
    return std::string(error.what()).substr(path.size() + 4);
  }
}

std::string Entry(const std::string& name, const std::string& shape, const std::string& offsets) {
  return '"' + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

TEST_CASE("valid files of other writers are read and invalid files are refused with the reason") {
  const std::string a = Entry("a", "[2]", "[0,8]");
  CHECK(RefusalOf("{" + a + "}", 8) == "");
  CHECK(RefusalOf("{}", 0) == "");
  CHECK(RefusalOf("{" + a + "}    ", 8) == "");
  CHECK(RefusalOf("{" + Entry("s", "[]", "[0,4]") + "}", 4) == "");
  CHECK(RefusalOf("{" + a + "," + Entry("z", "[0,9]", "[0,0]") + "}", 8) == "");
  CHECK(RefusalOf(R"({"__metadata__":{"k":"v"},)" + a + "}", 8) == "");

  const auto refused = [](const std::string& header, size_t bytes, const std::string& why) {
    CHECK_THAT(RefusalOf(header, bytes), Contains(why));
  };
  refused("", 0, "does not begin with '{'");
  refused(" {}", 0, "does not begin with '{'");
  refused("{" + a, 8, "found invalid JSON or UTF-8 at byte");
  refused("{" + a + "} x", 8, "found invalid JSON or UTF-8 at byte");
  refused("{\"\xff\":1}", 0, "found invalid JSON or UTF-8 at byte");
  refused("{" + a + "," + a + "}", 8, "'a' occurs twice");
  refused(R"({"__metadata__":{"k":"v","k":"w"}})", 0, "metadata 'k' occurs twice");
  refused(R"({"__metadata__":{"k":1}})", 0, "a number where none is expected, near 'k'");
  refused("{" + a + "}", 9, "the header describes 8 bytes of data; found 9");
  refused("{" + a + "}", 7, "the header describes 8 bytes of data; found 7");
  refused("{" + Entry("a", "[3]", "[0,8]") + "}", 8, "f32 (3), lies at [0, 8)");
  refused("{" + Entry("a", "[2]", "[4,12]") + "}", 12, "expected a begin at 0");
  refused("{" + a + "," + Entry("b", "[1]", "[4,8]") + "}", 8, "'b' lies at [4, 8)");
  refused("{" + a + "," + Entry("b", "[1]", "[12,16]") + "}", 16, "expected a begin at 8");
  refused("{" + Entry("a", "[2]", "[8,0]") + "}", 8, "expected");
  refused("{" + Entry("a", "[2]", "[0]") + "}", 8, "does not have two data_offsets");
  refused("{" + Entry("a", "[2]", "[0,8,8]") + "}", 8, "a number where none is expected");
  refused("{" + Entry("a", "[-2]", "[0,8]") + "}", 8, "a negative number");
  refused("{" + Entry("a", "[2.0]", "[0,8]") + "}", 8, "a fraction");
  refused(
      "{" + Entry("a", "[4294967296,4294967296]", "[0,0]") + "}", 0,
      "expected as many bytes as its shape");
  refused(
      "{" + Entry("a", "[4611686018427387904]", "[0,0]") + "}", 0,
      "expected as many bytes as its shape");
  refused(R"({"a":{"dtype":"F32","shape":[]}})", 0, "lacks its dtype, shape or data_offsets");
  refused(
      R"({"a":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}})", 1,
      "has dtype 'F8_E5M2', which dtrun does not have");
  CHECK_THAT(
      RefusalOf("{}", 0, uint64_t{1} << 63),
      Contains("the header is 9223372036854775808 bytes long; expected 2 at most"));
}

TEST_CASE("shards have about equal bytes and small tensors stay in one piece") {
  std::vector<float> data(1 << 20);  // 4 MiB
  const auto tensor = [&](const char* name, uint64_t count) {
    return runtime::Tensor{name, Buffer(data.data(), count), {count}};
  };
  CHECK(runtime::PlanPieces({tensor("a", 5), tensor("b", 0)}, 1) == Pieces{{{0, 0, 5}, {1, 0, 0}}});
  CHECK(
      runtime::PlanPieces({tensor("a", 1 << 20)}, 3) ==
      Pieces{{{0, 0, 349526}}, {{0, 349526, 349525}}, {{0, 699051, 349525}}});
  const Pieces many =
      runtime::PlanPieces({tensor("a", 100'000), tensor("b", 1 << 20), tensor("c", 100'000)}, 2);
  CHECK(
      many == Pieces{{{0, 0, 100'000}, {1, 0, 524'288}}, {{1, 524'288, 524'288}, {2, 0, 100'000}}});
  CHECK(runtime::PlanPieces({}, 3) == Pieces(3));
  CHECK(runtime::NameOfPiece(tensor("b", 9), {1, 3, 4}) == "b[3:7]");
}

TEST_CASE("a manifest of a later version is refused with both versions") {
  const runtime::Manifest manifest = runtime::ParseManifest(runtime::FormatManifest(
      {.sequence = 3, .step = 7, .value = 0.1, .ranks = 2, .metadata = {{"k", "v"}}}));
  CHECK(manifest.sequence == 3);
  CHECK(manifest.step == 7);
  CHECK(manifest.value == 0.1);
  CHECK(manifest.metadata == runtime::Metadata{{"k", "v"}});
  CHECK_THROWS_WITH(
      runtime::ParseManifestBody(R"({"format":"dtrun checkpoint","version":2})"),
      Contains("found version 2; this dtrun (") && Contains(") reads version 1"));
  CHECK_THROWS_WITH(runtime::ParseManifestBody("[]"), Contains("found an invalid manifest: "));
}

}  // namespace
}  // namespace dtrun::testing

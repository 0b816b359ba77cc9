// A file is written from its beginning to its end. The checksum of each piece of data is computed
// just before the write, so the write finds the piece in the cache. At the end, the header is
// written again, with the checksums.

#include "runtime/tensor_file/tensor_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/tensor_file/safetensors.h"

namespace dtrun::runtime {
namespace {

using base::Text;

constexpr uint64_t kPieceBytes = 256 << 10;

// The order of the reference writer of the format: large elements first, so that all are aligned.
std::vector<const Tensor*> InFileOrder(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    const uint64_t a_size = SizeOf(a->buffer.dtype), b_size = SizeOf(b->buffer.dtype);
    return a_size != b_size ? a_size > b_size : a->name < b->name;
  });
  return order;
}

SafetensorsHeader HeaderOf(const std::vector<const Tensor*>& order, const Metadata& metadata) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  uint64_t at = 0;
  for (const Tensor* tensor : order) {
    const uint64_t end = at + tensor->buffer.bytes();
    header.tensors.push_back({tensor->name, tensor->buffer.dtype, tensor->shape, at, end});
    at = end;
  }
  return header;
}

uint32_t WriteData(OutputFile& file, const Buffer& buffer) {
  uint32_t crc = 0;
  const auto* data = static_cast<const char*>(buffer.data);
  for (uint64_t at = 0; at < buffer.bytes(); at += kPieceBytes) {
    const uint64_t bytes = std::min(kPieceBytes, buffer.bytes() - at);
    crc = Crc32c(data + at, bytes, crc);
    file.Write(data + at, bytes);
  }
  return crc;
}

void CheckData(const SafetensorsHeader& header, const Checksums& sums, const char* data) {
  for (size_t i = 0; i < sums.tensors.size(); ++i) {
    const TensorEntry& tensor = header.tensors[i];
    const uint32_t found = Crc32c(data + tensor.begin, tensor.end - tensor.begin);
    if (found != sums.tensors[i])
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           "the data of tensor '", tensor.name, "' has CRC32C ",
                                           HexOf(found), "; expected ", HexOf(sums.tensors[i])));
  }
}

// Uses the tensors in place. Copies a tensor that is not aligned to its element size.
void PlaceTensors(const SafetensorsHeader& header, char* data, TensorFile* result) {
  for (const TensorEntry& entry : header.tensors) {
    const uint64_t bytes = entry.end - entry.begin, size = SizeOf(entry.dtype);
    char* place = data + entry.begin;
    if (reinterpret_cast<uintptr_t>(place) % size != 0) {
      result->moved.emplace_back(new char[bytes]);
      std::memcpy(result->moved.back().get(), place, bytes);
      place = result->moved.back().get();
    }
    result->tensors.push_back({entry.name, Buffer(place, bytes / size, entry.dtype), entry.shape});
  }
  std::sort(result->tensors.begin(), result->tensors.end(), [](const Tensor& a, const Tensor& b) {
    return a.name < b.name;
  });
}

}  // namespace

WrittenFile WriteTensorFile(
    const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata) {
  const std::vector<const Tensor*> order = InFileOrder(tensors);
  HeaderDraft draft(HeaderOf(order, metadata));
  OutputFile file(path);
  file.Write(draft.bytes().data(), draft.bytes().size());
  uint64_t bytes = draft.bytes().size();
  for (size_t i = 0; i < order.size(); ++i) {
    draft.SetCrc(i, WriteData(file, order[i]->buffer));
    bytes += order[i]->buffer.bytes();
  }
  draft.Finish();
  file.WriteAt(0, draft.bytes().data(), draft.bytes().size());
  file.Finish();
  return {.bytes = bytes, .header_crc = draft.crc()};
}

TensorFile ParseTensorFile(FileBytes file) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); };
  uint64_t length = 0;
  if (file.size < sizeof length)
    refuse(Text("the file has ", file.size, " bytes; expected 8 of a header's length at least"));
  std::memcpy(&length, file.data.get(), sizeof length);
  const uint64_t most = std::min(kMostHeaderBytes, file.size - sizeof length);
  if (length > most)
    refuse(Text("the header is ", length, " bytes long; expected ", most, " at most"));
  const std::string_view text(file.data.get() + sizeof length, length);
  char* data = file.data.get() + sizeof length + length;
  const SafetensorsHeader header = ParseHeader(text, file.size - sizeof length - length);
  const Checksums sums = ReadChecksums(text, header);
  CheckData(header, sums, data);
  TensorFile result{
      .tensors = {},
      .metadata = header.metadata,
      .bytes = file.size,
      .header_crc = sums.header,
  };
  std::erase_if(
      result.metadata, [](const auto& entry) { return entry.first.starts_with(kOwnPrefix); });
  PlaceTensors(header, data, &result);
  result.file = std::move(file);
  return result;
}

TensorFile ReadTensorFile(const std::string& path, Links links) {
  FileBytes file = ReadWhole(path, links);
  try {
    return ParseTensorFile(std::move(file));
  } catch (const Error& error) {
    throw Error(error.code(), Text("'", path, "': ", error.what()));
  }
}

void SaveTensorFile(
    const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata) {
  static std::atomic<uint64_t> count{0};
  CheckTensors(tensors);
  CheckMetadata(metadata);
  const std::string temporary = Text(path, ".tmp-", ::getpid(), '-', ++count);
  try {
    WriteTensorFile(temporary, tensors, metadata);
    Rename(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  SyncFolder(folder.empty() ? "." : folder);
}

using base::Text;

std::string Describe(DType dtype, const Shape& shape) {
  std::vector<std::string> sizes;
  for (const uint64_t size : shape) sizes.push_back(std::to_string(size));
  return Text(NameOf(dtype), " (", base::Join(sizes, ", "), ")");
}

std::string Shortened(const std::string& text) {
  constexpr size_t kMost = 400;
  if (text.size() <= kMost) return text;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

bool CountOf(const Shape& shape, uint64_t* count) {
  *count = 1;
  for (const uint64_t size : shape)
    if (__builtin_mul_overflow(*count, size, count)) return false;
  return true;
}

bool IsUtf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

void CheckTensors(const std::vector<Tensor>& tensors) {
  std::set<std::string> names;
  for (const Tensor& tensor : tensors) {
    const auto refuse = [&](ErrorCode code, const std::string& what) {
      throw Error(code, Text("tensor '", tensor.name, "' ", what));
    };
    if (tensor.name.empty() || tensor.name == "__metadata__" || !IsUtf8(tensor.name))
      refuse(
          ErrorCode::kInvalidArgument, "has no name that can be saved; expected a name in UTF-8");
    if (!names.insert(tensor.name).second)
      refuse(ErrorCode::kInvalidArgument, "occurs twice; expected different names");
    if (SizeOf(tensor.buffer.dtype) == 0)
      refuse(
          ErrorCode::kInvalidArgument,
          Text("has dtype ", static_cast<int32_t>(tensor.buffer.dtype), ", which does not exist"));
    if (tensor.buffer.device != -1)
      refuse(
          ErrorCode::kUnavailable,
          Text("lies on device ", tensor.buffer.device, "; expected host memory"));
    uint64_t count = 0, bytes = 0;
    if (!CountOf(tensor.shape, &count) || count != tensor.buffer.count ||
        __builtin_mul_overflow(count, SizeOf(tensor.buffer.dtype), &bytes))
      refuse(
          ErrorCode::kInvalidArgument,
          Text(
              "is ", Describe(tensor.buffer.dtype, tensor.shape), " and has ", tensor.buffer.count,
              " elements; expected as many as the shape"));
    if (count > 0 && tensor.buffer.data == nullptr)
      refuse(ErrorCode::kInvalidArgument, "has data NULL");
  }
}

void CheckMetadata(const Metadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (!IsUtf8(key) || !IsUtf8(value))
      throw Error(
          ErrorCode::kInvalidArgument, Text("metadata '", key, "' is not text; expected UTF-8"));
    if (key.starts_with(kOwnPrefix))
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("metadata '", key, "': keys that begin with '", kOwnPrefix, "' are dtrun's own"));
  }
}

}  // namespace dtrun::runtime

#include "runtime/checkpoint/tensor.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {

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
      refuse(ErrorCode::kInvalidArgument, "has no name that can be saved; expected one in UTF-8");
    if (!names.insert(tensor.name).second)
      refuse(ErrorCode::kInvalidArgument, "is there twice; expected different names");
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
          ErrorCode::kInvalidArgument, Text("metadata '", key, "' is no text; expected UTF-8"));
    if (key.starts_with(kOwnPrefix))
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("metadata '", key, "': keys that begin with '", kOwnPrefix, "' are dtrun's own"));
  }
}

}  // namespace dtrun::runtime

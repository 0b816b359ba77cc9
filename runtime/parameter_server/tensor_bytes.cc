#include "runtime/parameter_server/tensor_bytes.h"

#include <cstring>
#include <memory>

#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

struct Head {
  uint64_t dtype, count, name_bytes;
};

}  // namespace

std::string EncodeTensors(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    const Head head = {
        static_cast<uint64_t>(tensor.buffer.dtype), tensor.buffer.count, tensor.name.size()};
    bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
    bytes += tensor.name;
    if (tensor.buffer.count > 0)
      bytes.append(static_cast<const char*>(tensor.buffer.data), tensor.buffer.bytes());
  }
  return bytes;
}

void DecodeTensors(const std::string& bytes, TensorFile& tensors) {
  for (size_t at = 0; at < bytes.size();) {
    const auto take = [&](void* to, uint64_t wanted) {
      if (wanted > bytes.size() - at)
        throw Error(ErrorCode::kSystem, "a parameter server's state ended in the middle");
      std::memcpy(to, bytes.data() + at, wanted);
      at += wanted;
    };
    Head head;
    take(&head, sizeof head);
    const auto dtype = static_cast<DType>(head.dtype);
    const uint64_t left = bytes.size() - at;
    if (SizeOf(dtype) == 0 || head.count > left || head.name_bytes > left)
      throw Error(ErrorCode::kSystem, "a parameter server's state is none");
    std::string name(head.name_bytes, '\0');
    take(name.data(), name.size());
    tensors.moved.push_back(std::make_unique<char[]>(head.count * SizeOf(dtype) + 1));
    Buffer buffer(tensors.moved.back().get(), head.count, dtype);
    take(buffer.data, buffer.bytes());
    tensors.tensors.push_back({std::move(name), buffer, {head.count}});
  }
}

}  // namespace dtrun::runtime

#include "runtime/checkpoint/snapshot.h"

#include <cstring>

namespace dtrun::runtime {
namespace {

constexpr uint64_t kAlignment = 64;

uint64_t PlaceBytes(const Tensor& tensor) {
  return (tensor.buffer.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void Snapshot::Reserve(const std::vector<Tensor>& tensors) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += PlaceBytes(tensor);
  if (bytes <= bytes_) return;
  bytes_ = 0;
  memory_.reset();
  memory_.reset(new char[bytes]);
  // Touched now, so that the kernel finds the pages before a training step waits for them.
  std::memset(memory_.get(), 0, bytes);
  bytes_ = bytes;
}

std::vector<Tensor> Snapshot::Copy(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies = tensors;
  char* next = memory_.get();
  for (Tensor& tensor : copies) {
    if (tensor.buffer.bytes() > 0) std::memcpy(next, tensor.buffer.data, tensor.buffer.bytes());
    tensor.buffer.data = next;
    next += PlaceBytes(tensor);
  }
  return copies;
}

}  // namespace dtrun::runtime

// A file in the safetensors format from an untrusted source.

#include <cstring>
#include <memory>
#include <utility>

#include "runtime/tensor_file/tensor_file.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(safetensors) {
  fuzz::TakesOrRefuses([&] {
    runtime::FileBytes bytes{std::unique_ptr<char[]>(new char[size]), size};
    if (size > 0) std::memcpy(bytes.data.get(), data, size);
    const runtime::TensorFile file = runtime::ParseTensorFile(std::move(bytes));
    // Accepted tensors lie in the file, are aligned and can be saved.
    runtime::CheckTensors(file.tensors);
    uint64_t sum = 0;
    for (const runtime::Tensor& tensor : file.tensors) {
      const auto* first = static_cast<const unsigned char*>(tensor.buffer.data);
      const uint64_t element = SizeOf(tensor.buffer.dtype);
      fuzz::Expect(reinterpret_cast<uintptr_t>(first) % element == 0);
      for (uint64_t i = 0; i < tensor.buffer.bytes(); ++i) sum += first[i];
    }
    fuzz::Expect(sum <= size * 255);
  });
  return 0;
}

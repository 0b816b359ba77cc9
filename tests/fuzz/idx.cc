// IDX files, gzipped or not: the header alone and the whole file. An accepted file is complete.

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "models/data/dataset.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

// The input as a file.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(memfd_create("idx", 0)) {
    fuzz::Expect(fd_ >= 0 && write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

FUZZ_TARGET(idx) {
  const MemoryFile file(data, size);
  for (const int dimensions : {1, 3}) {
    fuzz::TakesOrRefuses([&] { models::ReadIdxDims(file.path(), dimensions); });
    fuzz::TakesOrRefuses([&] {
      const models::IdxArray array = models::ReadIdx(file.path(), dimensions);
      fuzz::Expect(array.dims.size() == static_cast<size_t>(dimensions));
      uint64_t count = 1;
      for (const uint64_t dim : array.dims) count *= dim;
      fuzz::Expect(count > 0 && array.bytes.size() == count);
      fuzz::Expect(models::ReadIdxDims(file.path(), dimensions) == array.dims);
    });
  }
  return 0;
}

#include "runtime/released_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace dtrun::runtime {
namespace {

struct Extent {
  uintptr_t begin, end;
};

// Ascending; those that touch are one.
std::vector<Extent> Joined(const std::vector<Buffer>& pieces) {
  std::vector<Extent> extents;
  for (const Buffer& piece : pieces) {
    const auto begin = reinterpret_cast<uintptr_t>(piece.data);
    if (piece.bytes() > 0) extents.push_back({begin, begin + piece.bytes()});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin < b.begin;
  });
  std::vector<Extent> joined;
  for (const Extent& extent : extents) {
    if (!joined.empty() && joined.back().end == extent.begin)
      joined.back().end = extent.end;
    else
      joined.push_back(extent);
  }
  return joined;
}

}  // namespace

// Pages that the system does not take, such as locked ones, stay as they are.
void ReleasePages(const std::vector<Buffer>& pieces) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const Extent& extent : Joined(pieces)) {
    const uintptr_t first = (extent.begin + page - 1) / page * page, end = extent.end / page * page;
    if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }
}

}  // namespace dtrun::runtime

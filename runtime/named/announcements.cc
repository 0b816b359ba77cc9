// What a rank tells in a round, in this order:
//
//   1  names that have a place in the cache, by the number of the place, with the request if that
//      has changed since
//   2  names that have none, with the request
//   3  what it submitted last, whether it joins, and which tensors it waits for no more

#include "runtime/named/announcements.h"

#include <algorithm>

#include "runtime/named/submission.h"
#include "runtime/named/tensor_table.h"

namespace dtrun::runtime::named {

Announcements::Announcements(int rank, size_t cache_capacity)
    : rank_(rank), bits_((cache_capacity + 63) / 64) {}

const std::string& Announcements::Take() {
  news_.Clear();
  std::vector<const Part*> changed, unknown;
  uint64_t last = kNoLast;
  size_t words = 0;
  for (Part* part : parts_) {
    const Tensor& tensor = *part->tensor;
    if (tensor.slot < 0) {
      unknown.push_back(part);
      last = kLastIsNew;
      continue;
    }
    const auto slot = static_cast<uint64_t>(tensor.slot);
    last = kFirstLastSlot + slot;
    if (part->request != tensor.requests->by_rank[static_cast<size_t>(rank_)]) {
      changed.push_back(part);
      continue;
    }
    bits_[slot / 64] |= uint64_t{1} << slot % 64;
    words = std::max<size_t>(words, slot / 64 + 1);
  }
  // Runs of bits that are set: how many are not before it, how many are.
  uint64_t gap = 0, run = 0;
  const auto end_run = [&] {
    if (run == 0) return;
    news_.Number(run);
    news_.Number(gap);
    gap = run = 0;
  };
  for (size_t w = 0; w < words; ++w) {
    for (uint64_t bit = 0; bit < 64; ++bit) {
      if ((bits_[w] >> bit & 1) != 0) {
        ++run;
      } else {
        end_run();
        ++gap;
      }
    }
    bits_[w] = 0;
  }
  end_run();
  news_.Number(0);
  news_.Number(changed.size());
  for (const Part* part : changed) {
    news_.Number(static_cast<uint64_t>(part->tensor->slot));
    Write(*part->request, news_);
  }
  news_.Number(unknown.size());
  for (const Part* part : unknown) {
    news_.Name(part->tensor->name);
    Write(*part->request, news_);
  }
  news_.Number(last);
  news_.Number(joins_ ? 1 : 0);
  news_.Number(withdrawn_.size());
  for (const auto& [name, after_s] : withdrawn_) {
    news_.Name(name);
    news_.Number(static_cast<uint64_t>(after_s));
  }
  parts_.clear();
  withdrawn_.clear();
  joins_ = false;
  return news_.bytes();
}

}  // namespace dtrun::runtime::named

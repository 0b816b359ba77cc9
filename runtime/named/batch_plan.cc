// Two tensors go the same way if they can share a collective. Each way has at most one open batch.
// A tensor joins the open batch of its way if there is room. Otherwise it opens a new batch, in
// place of the old one.

#include <algorithm>

#include "runtime/named/batch_transfer.h"

namespace dtrun::runtime::named {
namespace {

// The bytes of an item in a batch, on the rank with the most bytes.
uint64_t BatchBytes(const Item& item, int size) {
  const uint64_t row = item.any->row_bytes();
  if (item.any->kind == Kind::kAllGather) {
    uint64_t rows = 0;
    for (int r = 0; r < size; ++r) rows += item.RowsOf(r);
    return rows * row;
  }
  if (item.any->kind != Kind::kAllToAll) return item.any->bytes();
  uint64_t most = 0;
  for (int r = 0; r < size; ++r) {
    uint64_t rows = item.RowsOf(r);
    for (int from = 0; from < size; ++from) rows += item.RowsTo(from, r, size);
    most = std::max(most, rows);
  }
  return most * row;
}

// Returns true if two items can share a collective.
bool GoTheSameWay(const Item& a, const Item& b) {
  const Request &one = *a.any, &other = *b.any;
  if (one.kind != other.kind || a.participants != b.participants) return false;
  if (!Reduces(one.kind)) return one.kind != Kind::kBroadcast || one.root == other.root;
  return one.dtype == other.dtype && one.op == other.op && one.before == other.before &&
         one.after == other.after;
}

// A batch that has room.
struct Open {
  size_t batch;
  uint64_t bytes;
};

}  // namespace

std::vector<Batch> PlanBatches(std::vector<Ready> ready, int size, uint64_t batch_bytes) {
  std::vector<Batch> batches;
  std::vector<Open> open;  // at most one per way; the last match is in front
  for (Ready& one : ready) {
    const Request& any = one.request();
    if (any.kind == Kind::kBarrier) continue;  // moves no data; its tensor may be gone
    Item item{
        one.tensor == nullptr ? nullptr : one.tensor->mine, std::move(one.requests),
        std::move(one.participants), &any};
    const uint64_t bytes = BatchBytes(item, size);
    const auto same = std::find_if(open.begin(), open.end(), [&](const Open& other) {
      return GoTheSameWay(batches[other.batch][0], item);
    });
    if (bytes > batch_bytes) {
      batches.push_back({std::move(item)});
    } else if (same != open.end() && same->bytes + bytes <= batch_bytes) {
      batches[same->batch].push_back(std::move(item));
      same->bytes += bytes;
      std::swap(*same, open.front());
    } else {
      batches.push_back({std::move(item)});
      if (same != open.end()) open.erase(same);
      open.insert(open.begin(), {batches.size() - 1, bytes});
    }
  }
  return batches;
}

}  // namespace dtrun::runtime::named

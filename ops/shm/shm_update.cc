// The ranks meet: each posts what it called and where its buffers lie, and compares. From there on
// nobody needs the others: every rank goes through its own share in pieces that stay in its cache,
// reduces a piece over all inputs into a small scratch buffer, lets the caller update its own
// output from it, and stores the piece into the outputs of the others while it is at hand, past the
// cache, because nobody reads them soon. An update that is fused does all of that itself, element
// by element: every stream of memory runs all the time then. A barrier ends it. The walk belongs to
// the thread that called: the engine goes on with other operations.

#include "ops/shm/shm_update.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/reduce/reduce.h"
#include "ops/shm/copy.h"
#include "ops/shm/meeting.h"
#include "ops/shm/reach.h"

namespace dtrun::ops::shm {
namespace {

// This rank's share of the update, piece by piece.
class Walk {
 public:
  Walk(const Meeting& meeting, const ShareUpdate& update)
      : m_(meeting),
        update_(update),
        share_(ShareOf(meeting.collective().send_counts, meeting.rank())),
        stores_(StoresFor(meeting.collective().output.bytes())),
        inputs_(static_cast<size_t>(meeting.size())),
        scratch_(kPieceBytes + kCacheLine) {}

  void Run() {
    if (update_.fused) {
      if (share_.count > 0) UpdateWhole();
    } else {
      UpdateInPieces();
    }
    FenceStores();
  }

 private:
  void UpdateInPieces() {
    const uint64_t piece = kPieceBytes / m_.element();
    for (uint64_t done = 0; done < share_.count; done += piece) {
      const uint64_t first = share_.begin + done, count = std::min(piece, share_.count - done);
      update_.piece(first, count, ReducePiece(first, count));
      if (m_.kind() == CollectiveKind::kReduceUpdateGather) StorePiece(first, count);
    }
  }

  void UpdateWhole() {
    PointInputsTo(share_.begin);
    std::vector<void*> copies;
    for (int i = 1; i < m_.size() && m_.kind() == CollectiveKind::kReduceUpdateGather; ++i) {
      const int peer = (m_.rank() + i) % m_.size();
      if (m_.output(peer) == m_.output(m_.rank())) continue;
      copies.push_back(m_.output(peer) + share_.begin * m_.element());
    }
    Arithmetic arithmetic = m_.arithmetic();
    arithmetic.stores = stores_;
    update_.fused(
        share_.begin, share_.count,
        {inputs_.data(), m_.size(), arithmetic, copies.data(), static_cast<int>(copies.size())});
  }

  void PointInputsTo(uint64_t first) {
    for (int r = 0; r < m_.size(); ++r)
      inputs_[static_cast<size_t>(r)] = m_.input(r) + first * m_.element();
  }

  const void* ReducePiece(uint64_t first, uint64_t count) {
    PointInputsTo(first);
    void* reduced = scratch_.data() + AlignmentGap(scratch_.data());
    Reduce(
        inputs_.data(), m_.size(), &reduced, 1, count, m_.collective().input.dtype,
        m_.arithmetic());
    return reduced;
  }

  void StorePiece(uint64_t first, uint64_t count) {
    for (int i = 1; i < m_.size(); ++i) {
      const int peer = (m_.rank() + i) % m_.size();
      char* to = m_.output(peer) + first * m_.element();
      const char* from = m_.output(m_.rank()) + first * m_.element();
      if (to == from) continue;
      if (stores_ == Stores::kStreaming) {
        CopyUnfenced(to, from, count * m_.element());
      } else {
        Copy(to, from, count * m_.element(), stores_);
      }
    }
  }

  static uint64_t AlignmentGap(const char* data) {
    return -reinterpret_cast<uintptr_t>(data) % kCacheLine;
  }

  const Meeting& m_;
  const ShareUpdate& update_;
  Range share_;
  Stores stores_;
  std::vector<const void*> inputs_;
  std::vector<char> scratch_;
};

}  // namespace

bool UpdateInOnePass(
    const std::shared_ptr<ShmGroup>& group, Engine& engine, const Collective& collective,
    const ShareUpdate& update, const std::function<void()>& barrier) {
  const auto met = std::make_shared<Met>(group, collective);
  engine.Start(std::make_unique<MeetingOperation>(met, CallOf(collective, group->rank()))).Wait();
  if (!met->mapped) return false;
  Walk(met->meeting, update).Run();
  barrier();
  return true;
}

}  // namespace dtrun::ops::shm

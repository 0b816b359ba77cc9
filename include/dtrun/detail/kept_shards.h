#ifndef DTRUN_DETAIL_KEPT_SHARDS_H_
#define DTRUN_DETAIL_KEPT_SHARDS_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/detail/sharded_state.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <dtrun/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// How Elastic keeps the state of an optimizer that is spread over the ranks. Internal.
//
// After a step, each rank packs its share of values and state into memory that the ranks of its
// host share, which outlives the rank. If there are more hosts, it also sends the share to a rank
// of another host. The next step begins when these copies have arrived. So a rank that has ended a
// step knows that all ranks have packed and copied the step before: two snapshots are enough. After
// a loss, the ranks compare the pieces that they hold, and take the newest step of which they hold
// all pieces.
//
// On one host, the step itself copies the state, from the cache. It overwrites the older snapshot
// when all ranks have begun the step, so after all have ended the step before. The values are
// copied after the step, as the caller may still change them.
//
// A generation is the time between two losses, in which the shares stay the same. The snapshots of
// all generations before stay until the new one has made a step. The number of the generation that
// has computed a step is the step's line: a step that is computed again may differ in its last
// bits.

namespace dtrun {
namespace detail {

class KeptShards {
 public:
  /// The cost of the copies on this rank.
  struct Cost {
    uint64_t held_bytes = 0,        ///< in memory for snapshots
        copy_bytes = 0;             ///< sent for one snapshot
    double pack_s = 0, wait_s = 0;  ///< since the start, in which the training stood still
  };

  /// Collective, after a loss: finds the newest step of which the ranks hold all pieces. nullopt:
  /// there is none. Then returns that step, and the rank that has what is equal on all ranks.
  std::optional<std::pair<uint64_t, int>> Find(Communicator& world) {
    plan_.clear();
    std::vector<std::vector<uint64_t>> tables = AllGatherObjects(world, Table());
    std::map<Version, std::vector<Held>> held;
    std::vector<uint64_t> counts;
    for (size_t rank = 0; rank < tables.size(); ++rank)
      ReadTable(static_cast<int>(rank), tables[rank], counts, held);
    for (auto each = held.rbegin(); each != held.rend(); ++each) {
      const auto own = std::find_if(
          each->second.begin(), each->second.end(), [](const Held& one) { return one.is_mine; });
      if (own == each->second.end() || !Covers(counts, each->second)) continue;
      version_ = each->first;
      return std::pair(version_.first, own->rank);
    }
    plan_.clear();
    return std::nullopt;
  }

  /// The equal values of the step that was found, on the rank that Find has named.
  const std::string& equal_on_all() const {
    const Entry found = Found();
    return found.generation->equal[found.snapshot];
  }
  /// Collective: gives all ranks what the optimizer of rank `root` had beside its share.
  void ShareEqual(Communicator& world, int root) {
    std::string mine;
    if (world.rank() == root) {
      const Entry found = Found();
      mine = found.generation->beside[found.snapshot];
    }
    beside_ = BroadcastBytes(world, mine, root);
  }

  /// Collective. Gives `state` what was found, if anything, and takes the first snapshot of a new
  /// generation. `host` is the number of this rank's host. Then each step waits for the copies.
  void Attach(
      std::unique_ptr<ShardedState> state, Communicator& world, int host, uint64_t generation,
      uint64_t step, uint64_t every, std::string equal) {
    CheckSameText(world, "steps between copies", std::to_string(every));
    if (every == 0)
      throw Error(ErrorCode::kInvalidArgument, "Elastic::Keep: every is 0; expected 1 or more");
    state_ = std::move(state);
    ranks_.emplace(world.Duplicate());
    every_ = every;
    counts_ = state_->counts();
    types_.clear();
    for (size_t item = 0; item < counts_.size(); ++item) types_.push_back(state_->TypesOf(item));
    GatherHosts(host);
    const bool restores = !plan_.empty();
    if (restores) Restore();
    plan_.clear();
    Begin(generation);
    Snap(step, restores ? version_.second : generation, std::move(equal));
    state_->BeforeStep([this] { BeginStep(); });
  }

  /// Says that the optimizer, its ranks and their operations end.
  void Detach() {
    if (state_ != nullptr) NoteArrival();
    works_.clear();
    ranks_.reset();
    state_.reset();
  }
  bool attached() const { return state_ != nullptr; }

  /// Takes a snapshot after step `step`, if it is time. `equal` are values that are equal on all
  /// ranks.
  template <typename Equal>
  void Take(uint64_t step, const Equal& equal) {
    generations_.erase(generations_.begin(), generations_.end() - 1);
    step_ = step;
    if (step % every_ == 0) Snap(step, now().number, equal());
  }

  Cost cost() const { return cost_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Piece = ShardedState::Piece;

  // The state of a snapshot, in memory that other ranks read; zeros at first.
  struct Marks {
    std::atomic<uint64_t> step, line, has_own, has_copy;
  };
  // A snapshot of a rank: its own share, and the copy of a share. Each piece has its columns one
  // after the other.
  struct Snapshot {
    Marks* marks = nullptr;
    char *own = nullptr, *copy = nullptr;
    std::vector<void*> state = {};  // of this rank's own pieces: their columns but the first
  };
  // The snapshots of a rank of this host.
  struct Seat {
    std::vector<Piece> own, copy;
    uint64_t own_bytes = 0, copy_bytes = 0;
    Snapshot snapshots[2];
  };
  struct Generation {
    uint64_t number = 0;
    std::vector<Seat> seats;
    size_t mine = 0;               // the seat of this rank
    std::optional<Memory> shared;  // nullopt: `alone` has the seat of this rank only
    std::vector<uint64_t> alone;
    uint64_t taken = 0;               // snapshots so far, in turn
    std::string equal[2], beside[2];  // of this rank's snapshots
  };
  using Version = std::pair<uint64_t, uint64_t>;  // step and line
  // A share that lies in the memory of this host.
  struct Entry {
    const Generation* generation;
    const Seat* seat;
    size_t snapshot;
    bool is_copy;

    const Marks& marks() const { return *seat->snapshots[snapshot].marks; }
    const std::vector<Piece>& pieces() const { return is_copy ? seat->copy : seat->own; }
    const char* bytes() const {
      return is_copy ? seat->snapshots[snapshot].copy : seat->snapshots[snapshot].own;
    }
    Version version() const { return {marks().step, marks().line}; }
    // This rank also has what was equal on all ranks.
    bool is_mine() const { return !is_copy && seat == &generation->seats[generation->mine]; }
  };
  // An entry of any rank.
  struct Held {
    int rank = 0;
    size_t entry = 0;
    bool is_mine = false;
    std::vector<Piece> pieces;
  };
  // A part of a piece, and the rank that has it.
  struct Source {
    int rank = 0;
    size_t entry = 0, piece = 0;
    uint64_t skip = 0, count = 0;  // elements of the piece
  };

  Generation& now() { return *generations_.back(); }

  // --- what the ranks hold ----------------------------------------------------------------------

  std::vector<Entry> Entries() const {
    std::vector<Entry> entries;
    for (const std::unique_ptr<Generation>& generation : generations_) {
      for (const Seat& seat : generation->seats) {
        for (const size_t s : {size_t{0}, size_t{1}}) {
          const Marks& marks = *seat.snapshots[s].marks;
          if (marks.has_own != 0) entries.push_back({generation.get(), &seat, s, false});
          if (marks.has_copy != 0) entries.push_back({generation.get(), &seat, s, true});
        }
      }
    }
    return entries;
  }

  // The element counts of the items, then the entries.
  std::vector<uint64_t> Table() const {
    std::vector<uint64_t> words = {counts_.size()};
    words.insert(words.end(), counts_.begin(), counts_.end());
    for (const Entry& entry : Entries()) {
      const std::vector<Piece>& pieces = entry.pieces();
      words.insert(
          words.end(), {entry.version().first, entry.version().second, entry.is_mine() ? 1u : 0u,
                        pieces.size()});
      for (const Piece& piece : pieces)
        words.insert(words.end(), {piece.item, piece.first, piece.count});
    }
    return words;
  }

  static void ReadTable(
      int rank, const std::vector<uint64_t>& words, std::vector<uint64_t>& counts,
      std::map<Version, std::vector<Held>>& held) {
    size_t at = 0;
    const auto next = [&] { return words.at(at++); };
    const uint64_t items = next();
    if (items > 0) counts.assign(words.begin() + 1, words.begin() + 1 + ptrdiff_t(items));
    at += items;
    for (size_t entry = 0; at < words.size(); ++entry) {
      const uint64_t step = next(), line = next(), is_mine = next();
      Held one{rank, entry, is_mine != 0, std::vector<Piece>(next())};
      for (Piece& piece : one.pieces) piece = {next(), next(), next()};
      held[{step, line}].push_back(std::move(one));
    }
  }

  // Whether the pieces have all elements. Then the plan says who gives which.
  bool Covers(const std::vector<uint64_t>& counts, const std::vector<Held>& held) {
    struct Place {
      Piece piece;
      Source source;
    };
    std::vector<std::vector<Place>> places(counts.size());
    for (const Held& one : held)
      for (size_t p = 0; p < one.pieces.size(); ++p)
        places[one.pieces[p].item].push_back({one.pieces[p], {one.rank, one.entry, p, 0, 0}});
    plan_.assign(counts.size(), {});
    for (size_t i = 0; i < counts.size(); ++i) {
      for (uint64_t next = 0; next < counts[i];) {
        const Place* best = nullptr;  // reaches furthest
        for (const Place& place : places[i]) {
          const uint64_t end = place.piece.first + place.piece.count;
          if (place.piece.first > next || end <= next) continue;
          if (best == nullptr || end > best->piece.first + best->piece.count) best = &place;
        }
        if (best == nullptr) return false;
        Source source = best->source;
        source.skip = next - best->piece.first;
        source.count = best->piece.count - source.skip;
        plan_[i].push_back(source);
        next += source.count;
      }
    }
    return true;
  }

  // This rank's own snapshot of the version that was found.
  Entry Found() const {
    const std::vector<Entry> entries = Entries();
    return *std::find_if(entries.begin(), entries.end(), [this](const Entry& entry) {
      return entry.is_mine() && entry.version() == version_;
    });
  }

  // --- the place of data in a snapshot ----------------------------------------------------------

  // Of the first columns.
  uint64_t BytesOf(const Piece& piece, size_t columns) const {
    uint64_t bytes = 0;
    for (size_t c = 0; c < columns; ++c) bytes += piece.count * SizeOf(types_[piece.item][c]);
    return bytes;
  }
  uint64_t BytesOf(const Piece& piece) const { return BytesOf(piece, types_[piece.item].size()); }
  uint64_t BytesOf(const std::vector<Piece>& pieces) const {
    uint64_t bytes = 0;
    for (const Piece& piece : pieces) bytes += BytesOf(piece);
    return bytes;
  }

  // --- after a loss -----------------------------------------------------------------------------

  void Restore() {
    for (size_t i = 0; i < counts_.size(); ++i) {
      for (size_t c = 0; c < types_[i].size(); ++c) {
        const DType dtype = types_[i][c];
        std::vector<char> whole(counts_[i] * SizeOf(dtype));
        uint64_t first = 0;
        for (const Source& source : plan_[i]) {
          const Buffer part(whole.data() + first * SizeOf(dtype), source.count, dtype);
          if (source.rank == ranks_->rank()) CopyPart(source, c, part);
          ranks_->StartBroadcast(part, source.rank).Wait();
          first += source.count;
        }
        state_->Take(i, c, Buffer(whole.data(), counts_[i], dtype), IsFirstOfHost());
      }
    }
    state_->TakeEqual(beside_);
    ranks_->Barrier();  // no rank steps while another one writes values
  }

  void CopyPart(const Source& source, size_t column, const Buffer& part) const {
    const Entry entry = Entries()[source.entry];
    const std::vector<Piece>& pieces = entry.pieces();
    uint64_t at = 0;
    for (size_t p = 0; p < source.piece; ++p) at += BytesOf(pieces[p]);
    at += BytesOf(pieces[source.piece], column) + source.skip * SizeOf(part.dtype);
    if (part.count > 0) std::memcpy(part.data, entry.bytes() + at, part.bytes());
  }

  // --- snapshots --------------------------------------------------------------------------------

  void GatherHosts(int32_t host) {
    hosts_.resize(static_cast<size_t>(ranks_->size()));
    ranks_->AllGather(Buffer(&host, 1), Buffer(hosts_.data(), hosts_.size()));
  }
  int32_t HostOf(int rank) const { return hosts_[static_cast<size_t>(rank)]; }
  bool IsFirstOfHost() const {
    const int32_t host = HostOf(ranks_->rank());
    return std::find(hosts_.begin(), hosts_.end(), host) - hosts_.begin() == ranks_->rank();
  }

  void FindPartners() {
    to_ = PartnerOf(ranks_->rank(), true);
    from_ = PartnerOf(ranks_->rank(), false);
  }

  // The rank that gets the copy of `rank`, or the rank whose copy it gets. Hosts stand in a row,
  // each with its ranks. The copies go as many ranks further as the largest host has, so to another
  // host if there is one with room.
  int PartnerOf(int rank, bool gets) const {
    std::vector<int> row(hosts_.size());
    for (size_t r = 0; r < row.size(); ++r) row[r] = static_cast<int>(r);
    std::stable_sort(row.begin(), row.end(), [&](int a, int b) { return HostOf(a) < HostOf(b); });
    size_t most = 1;
    for (const int32_t each : hosts_)
      most = std::max(most, static_cast<size_t>(std::count(hosts_.begin(), hosts_.end(), each)));
    const size_t p = row.size(), distance = most < p ? most : 1;
    const auto at = static_cast<size_t>(std::find(row.begin(), row.end(), rank) - row.begin());
    return row[(gets ? at + distance : at + p - distance) % p];
  }

  void Begin(uint64_t generation) {
    generations_.push_back(std::make_unique<Generation>());
    now().number = generation;
    FindPartners();
    std::vector<Piece> own;
    state_->ForOwn(
        [&own](const Piece& piece, const std::vector<Buffer>&) { own.push_back(piece); });
    const std::vector<std::vector<Piece>> all = AllGatherObjects(*ranks_, own);
    const int me = ranks_->rank();
    const bool shares = Share(all);
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      if (shares ? HostOf(rank) != HostOf(me) : rank != me) continue;
      if (rank == me) now().mine = now().seats.size();
      now().seats.push_back(SeatOf(rank, all));
    }
    char* at = shares ? static_cast<char*>(now().shared->data()) : nullptr;
    if (!shares) {
      now().alone.resize(BytesOf(now().seats[0]) / sizeof(uint64_t));
      at = reinterpret_cast<char*>(now().alone.data());
    }
    cost_.held_bytes = BytesOf(now().seats[now().mine]);
    cost_.copy_bytes = sends_ ? now().seats[now().mine].own_bytes : 0;
    for (Seat& seat : now().seats) {
      for (Snapshot& snapshot : seat.snapshots) {
        snapshot.marks = reinterpret_cast<Marks*>(at);
        snapshot.own = at + kLine;
        snapshot.copy = snapshot.own + Lines(seat.own_bytes);
        at = snapshot.copy + Lines(seat.copy_bytes);
      }
    }
    for (Snapshot& snapshot : now().seats[now().mine].snapshots) PlaceState(own, snapshot);
    filling_ = nullptr;
  }

  void PlaceState(const std::vector<Piece>& own, Snapshot& snapshot) const {
    char* at = snapshot.own;
    for (const Piece& piece : own) {
      for (size_t c = 0; c < types_[piece.item].size(); ++c) {
        if (c > 0) snapshot.state.push_back(at);
        at += piece.count * SizeOf(types_[piece.item][c]);
      }
    }
  }

  // Allocates the seats of this host in memory that its ranks share. Returns false if they cannot
  // share memory. Then each rank also sends its share if there is only one host.
  bool Share(const std::vector<std::vector<Piece>>& all) {
    const int me = ranks_->rank();
    const bool one_host = std::all_of(
        hosts_.begin(), hosts_.end(), [this](int32_t host) { return host == hosts_[0]; });
    sends_ = !one_host;
    uint64_t bytes = 0;
    for (int rank = 0; rank < ranks_->size(); ++rank)
      if (HostOf(rank) == HostOf(me)) bytes += BytesOf(SeatOf(rank, all));
    std::optional<Communicator> here = ranks_->Split(HostOf(me), me);
    try {
      now().shared.emplace(here->AllocateShared(bytes));
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
    }
    sends_ = to_ != me;
    return false;
  }

  Seat SeatOf(int rank, const std::vector<std::vector<Piece>>& all) const {
    Seat seat;
    seat.own = all[static_cast<size_t>(rank)];
    if (sends_) seat.copy = all[static_cast<size_t>(PartnerOf(rank, false))];
    seat.own_bytes = BytesOf(seat.own);
    seat.copy_bytes = BytesOf(seat.copy);
    return seat;
  }

  // Both snapshots, each with its marks in a cache line.
  static constexpr uint64_t kLine = 64;
  static uint64_t Lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  static uint64_t BytesOf(const Seat& seat) {
    return 2 * (kLine + Lines(seat.own_bytes) + Lines(seat.copy_bytes));
  }

  void Snap(uint64_t step, uint64_t line, std::string equal) {
    const Clock::time_point began = Clock::now();
    step_ = step;
    Snapshot& snapshot = Oldest();
    const bool has_state = filling_ == &snapshot && state_->StateIsCopied();
    filling_ = nullptr;
    Marks& marks = *snapshot.marks;
    marks.has_own = marks.has_copy = 0;
    char* to = snapshot.own;
    state_->ForOwn([&to, has_state](const Piece& piece, const std::vector<Buffer>& columns) {
      for (const Buffer& from : columns) {
        if (!has_state || &from == columns.data()) Copy(from, Buffer(to, piece.count, from.dtype));
        to += from.bytes();
      }
    });
    const size_t oldest = now().taken++ % 2;
    const Seat& seat = now().seats[now().mine];
    now().equal[oldest] = std::move(equal);
    now().beside[oldest] = state_->Equal();
    marks.step = step;
    marks.line = line;
    marks.has_own = 1;
    if (sends_) {
      newest_ = &marks;
      works_.push_back(ranks_->StartReceive(Bytes(snapshot.copy, seat.copy_bytes), from_));
      works_.push_back(ranks_->StartSend(Bytes(snapshot.own, seat.own_bytes), to_));
    }
    cost_.pack_s += std::chrono::duration<double>(Clock::now() - began).count();
  }

  // Of this rank.
  Snapshot& Oldest() { return now().seats[now().mine].snapshots[now().taken % 2]; }

  // Until all ranks have begun the step, the older snapshot may be the newest that all have.
  void BeginStep() {
    AwaitCopies();
    // Copies to another host may be under way even then.
    const bool copies = !sends_ && (step_ + 1) % every_ == 0;
    filling_ = copies ? &Oldest() : nullptr;
    if (!copies) return state_->CopyStateInStep({}, nullptr);
    state_->CopyStateInStep(filling_->state, [marks = filling_->marks] { marks->has_own = 0; });
  }

  static Buffer Bytes(char* data, uint64_t bytes) { return Buffer(data, bytes, DType::kU8); }

  // Before a step: after it, the older snapshot may be overwritten.
  void AwaitCopies() {
    if (works_.empty()) return;
    const bool needed = (step_ + 1) % every_ == 0;
    const Clock::time_point began = Clock::now();
    for (Work& work : works_) {
      if (needed)
        work.Wait();
      else
        work.Test();
    }
    cost_.wait_s += std::chrono::duration<double>(Clock::now() - began).count();
    if (!needed) return;
    newest_->has_copy = 1;
    works_.clear();
  }

  // The copy of another rank may have come, although an operation after it has failed.
  void NoteArrival() {
    if (works_.empty()) return;
    try {
      if (works_.front().Test()) newest_->has_copy = 1;
    } catch (const Error&) {
    }
  }

  std::unique_ptr<ShardedState> state_;  // null: between two calls of work
  std::optional<Communicator> ranks_;
  std::vector<uint64_t> counts_;           // elements of each item
  std::vector<std::vector<DType>> types_;  // of each item's columns
  std::vector<int32_t> hosts_;             // by rank
  int to_ = 0, from_ = 0;                  // the ranks that get and give copies
  bool sends_ = false;                     // copies go to other ranks
  uint64_t every_ = 1, step_ = 0;
  std::vector<std::unique_ptr<Generation>> generations_;  // the last one is the present one
  Marks* newest_ = nullptr;                               // whose copies are under way
  Snapshot* filling_ = nullptr;                           // to which the step copies the state
  std::vector<Work> works_;                               // receive, send
  Version version_;                                       // that was found
  std::vector<std::vector<Source>> plan_;                 // by item
  std::string beside_;                                    // of the optimizer, beside the shares
  Cost cost_;
};

}  // namespace detail
}  // namespace dtrun

#endif

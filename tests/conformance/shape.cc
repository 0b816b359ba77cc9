#include "tests/conformance/shape.h"

#include <numeric>
#include <sstream>

namespace dtrun::testing {
namespace {

bool HasRoot(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

uint64_t Before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
}

}  // namespace

bool Combines(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kReduce: return "reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllGather: return "all_gather";
    case Kind::kAllToAll: return "all_to_all";
    case Kind::kGather: return "gather";
    case Kind::kScatter: return "scatter";
  }
  return "unknown kind";
}

std::string Describe(const Shape& shape) {
  static constexpr const char* kPlacementNames[] = {"private", "mapped", "mixed"};
  std::ostringstream text;
  text << NameOf(shape.kind) << " (" << NameOf(shape.dtype) << ", " << shape.count << " elements";
  if (Combines(shape.kind)) text << ", " << NameOf(shape.op);
  if (shape.scale.before != 1 || shape.scale.after != 1) {
    text << ", scale " << shape.scale.before << " and " << shape.scale.after;
  }
  if (HasRoot(shape.kind)) text << ", root " << shape.root;
  if (shape.by_rank) text << ", counts by rank";
  if (shape.in_place) text << ", in place";
  if (shape.values == Values::kAny) text << ", any values";
  text << ", " << kPlacementNames[static_cast<int>(shape.placement)] << " memory), seed "
       << shape.seed;
  return text.str();
}

bool Part::has_input() const {
  const bool at_root_alone = shape_.kind == Kind::kBroadcast || shape_.kind == Kind::kScatter;
  return !at_root_alone || rank_ == shape_.root;
}

bool Part::has_output() const {
  if (shape_.kind == Kind::kBroadcast) return rank_ != shape_.root;
  const bool at_root_alone = shape_.kind == Kind::kReduce || shape_.kind == Kind::kGather;
  return !at_root_alone || rank_ == shape_.root;
}

// With counts by rank, the pieces have different sizes, and some are empty.
uint64_t Part::Piece(int a, int b) const {
  if (!shape_.by_rank) return shape_.count;
  const uint64_t hash =
      Hash(shape_.seed, static_cast<uint64_t>(a), 1000 + static_cast<uint64_t>(b));
  return hash % 4 == 0 ? 0 : shape_.count / (1 + hash % 3);
}

Counts Part::Shares() const {
  const auto p = static_cast<uint64_t>(size_);
  Counts shares(p, shape_.count / p);
  if (!shape_.by_rank) {
    for (uint64_t r = 0; r < shape_.count % p; ++r) ++shares[r];
    return shares;
  }
  // Every rank gives a part of its share to a pseudo-random rank.
  shares[0] += shape_.count % p;
  for (uint64_t r = 0; r < p; ++r) {
    const uint64_t hash = Hash(shape_.seed, r, 77),
                   given = hash % 3 == 0 ? shares[r] : shares[r] / 3;
    shares[r] -= given;
    shares[hash / 3 % p] += given;
  }
  return shares;
}

uint64_t Part::Moved(int source, int destination) const {
  switch (shape_.kind) {
    case Kind::kBroadcast: return source == shape_.root ? shape_.count : 0;
    case Kind::kAllGather: return Piece(source, 0);
    case Kind::kGather: return destination == shape_.root ? Piece(source, 0) : 0;
    case Kind::kScatter: return source == shape_.root ? Piece(destination, 0) : 0;
    case Kind::kAllToAll: return Piece(source, destination);
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
    case Kind::kReduce: break;
  }
  return 0;
}

uint64_t Part::Begin(int source, int destination) const {
  uint64_t begin = 0;
  if (shape_.kind == Kind::kAllToAll || shape_.kind == Kind::kScatter) {
    for (int d = 0; d < destination; ++d) begin += Moved(source, d);
  }
  return begin;
}

Counts Part::send_counts() const {
  Counts counts;
  if (!shape_.by_rank) return counts;
  if (shape_.kind == Kind::kReduceScatter) return Shares();
  const bool sends =
      shape_.kind == Kind::kAllToAll || (shape_.kind == Kind::kScatter && rank_ == shape_.root);
  for (int d = 0; sends && d < size_; ++d) counts.push_back(Moved(rank_, d));
  return counts;
}

Counts Part::receive_counts() const {
  Counts counts;
  const bool receives = shape_.kind == Kind::kAllToAll || shape_.kind == Kind::kAllGather ||
                        (shape_.kind == Kind::kGather && rank_ == shape_.root);
  for (int s = 0; shape_.by_rank && receives && s < size_; ++s) counts.push_back(Moved(s, rank_));
  return counts;
}

uint64_t Part::input_count() const {
  if (!has_input()) return 0;
  if (Combines(shape_.kind)) return shape_.count;
  if (shape_.kind != Kind::kAllToAll && shape_.kind != Kind::kScatter) {
    return shape_.kind == Kind::kBroadcast ? shape_.count : Piece(rank_, 0);
  }
  return Begin(rank_, size_);
}

uint64_t Part::output_count() const {
  if (!has_output()) return 0;
  if (shape_.kind == Kind::kReduceScatter) return Shares()[static_cast<size_t>(rank_)];
  if (Combines(shape_.kind)) return shape_.count;
  uint64_t count = 0;
  for (int s = 0; s < size_; ++s) count += Moved(s, rank_);
  return count;
}

bool Part::in_place() const {
  return shape_.in_place && shape_.kind != Kind::kAllToAll && has_input() && has_output();
}

uint64_t Part::offset() const {
  switch (shape_.kind) {
    case Kind::kReduceScatter: return Before(Shares(), rank_);
    case Kind::kScatter: return Begin(rank_, rank_);
    case Kind::kAllGather:
    case Kind::kGather: {
      uint64_t offset = 0;
      for (int s = 0; s < rank_; ++s) offset += Moved(s, rank_);
      return offset;
    }
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kBroadcast:
    case Kind::kAllToAll: break;
  }
  return 0;
}

Bytes Part::InputOf(int rank, uint64_t first, uint64_t count) const {
  return MakeValues(shape_.values, shape_.dtype, shape_.op, shape_.seed, rank, first, count);
}

Bytes Part::Input() const { return InputOf(rank_, 0, input_count()); }

Bytes Part::ExpectedOutput() const {
  if (!has_output()) return {};
  if (Combines(shape_.kind)) {
    const uint64_t first = shape_.kind == Kind::kReduceScatter ? offset() : 0;
    std::vector<Bytes> inputs;
    for (int r = 0; r < size_; ++r) inputs.push_back(InputOf(r, first, output_count()));
    return Reduced(inputs, shape_.dtype, shape_.op, shape_.scale);
  }
  Bytes output;
  for (int s = 0; s < size_; ++s) {
    const Bytes piece = InputOf(s, Begin(s, rank_), Moved(s, rank_));
    output.insert(output.end(), piece.begin(), piece.end());
  }
  return output;
}

}  // namespace dtrun::testing

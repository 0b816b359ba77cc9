#include "runtime/named/named_request.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include "base/text.h"

namespace dtrun::runtime::named {
namespace {

using base::Text;

std::string Shape(const Request& request) {
  std::vector<std::string> dimensions;
  for (const uint64_t dimension : request.shape) dimensions.push_back(Text(dimension));
  return Text(NameOf(request.dtype), '[', base::Join(dimensions, ", "), ']');
}

// Prints 17 digits if fewer would not show the exact value, so that different factors look
// different.
std::string Exactly(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  const std::string shorter = Text(value);
  return std::stod(shorter) == value ? shorter : text.str();
}

}  // namespace

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kAllGather: return "all_gather";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllToAll: return "all_to_all";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kBarrier: return "barrier";
  }
  return "unknown operation";
}

bool Reduces(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }

uint64_t Request::count() const {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

uint64_t Request::row_elements() const {
  return shape.empty()
             ? 1
             : std::accumulate(shape.begin() + 1, shape.end(), uint64_t{1}, std::multiplies<>());
}

uint64_t Request::RowsTo(int to, int size) const {
  const auto p = static_cast<uint64_t>(size), r = static_cast<uint64_t>(to);
  if (kind == Kind::kAllToAll && !splits.empty()) return splits[r];
  return rows() / p + (r < rows() % p ? 1 : 0);
}

std::string Describe(const Request& request, const ops::Members& members) {
  if (request.kind == Kind::kBarrier) return NameOf(request.kind);
  std::string text = Text(NameOf(request.kind), " (", Shape(request));
  if (Reduces(request.kind)) text += Text(", ", NameOf(request.op));
  if (request.before != 1) text += Text(", scaled by ", Exactly(request.before), " before");
  if (request.after != 1) text += Text(", scaled by ", Exactly(request.after), " after");
  if (request.kind == Kind::kBroadcast) text += Text(", root ", members.List({request.root}));
  if (request.group != 0) text += Text(", in a group of ", request.group_size);
  return text + ")";
}

void Write(const Request& request, ByteWriter& to) {
  const bool scaled = request.before != 1 || request.after != 1;
  const bool grouped = request.group != 0;
  to.Number(static_cast<uint64_t>(request.kind));
  to.Number(static_cast<uint64_t>(request.dtype));
  to.Number(static_cast<uint64_t>(request.op));
  to.Signed(request.root);
  to.Number((scaled ? 1u : 0u) | (grouped ? 2u : 0u));
  if (scaled) {
    to.Real(request.before);
    to.Real(request.after);
  }
  if (grouped) {
    to.Number(request.group_size);
    to.Fixed(request.group);
  }
  to.Number(request.shape.size());
  for (const uint64_t dimension : request.shape) to.Number(dimension);
  to.Number(request.splits.size());
  for (const uint64_t rows : request.splits) to.Number(rows);
}

Request ReadRequest(ByteReader& from) {
  Request request;
  request.kind = static_cast<Kind>(from.Number());
  request.dtype = static_cast<DType>(from.Number());
  request.op = static_cast<ReduceOp>(from.Number());
  request.root = static_cast<int32_t>(from.Signed());
  const uint64_t flags = from.Number();
  if ((flags & 1) != 0) {
    request.before = from.Real();
    request.after = from.Real();
  }
  if ((flags & 2) != 0) {
    request.group_size = static_cast<uint32_t>(from.Number());
    request.group = from.Fixed();
  }
  for (uint64_t n = from.Number(); n > 0; --n) request.shape.push_back(from.Number());
  for (uint64_t n = from.Number(); n > 0; --n) request.splits.push_back(from.Number());
  return request;
}

// --- checks between ranks ------------------------------------------------------------------------

namespace {

using RequestsByRank = std::vector<std::shared_ptr<const Request>>;

// The part of a shape that must be equal on all ranks.
std::vector<uint64_t> CommonShape(const Request& request) {
  std::vector<uint64_t> shape = request.shape;
  const bool by_rows = request.kind == Kind::kAllGather || request.kind == Kind::kAllToAll;
  if (by_rows && !shape.empty()) shape[0] = 0;
  return shape;
}

// The first property in which two requests differ but must not. "" if there is none.
std::string Difference(const Request& a, const Request& b) {
  if (a.kind != b.kind) return "the operation";
  if (a.kind == Kind::kBarrier) return "";
  if (a.group != b.group || a.group_size != b.group_size) return "the group";
  if (a.dtype != b.dtype) return "the type";
  if (a.shape.size() != b.shape.size()) return "the number of dimensions";
  if (CommonShape(a) != CommonShape(b)) return "the shape";
  if (a.kind == Kind::kBroadcast && a.root != b.root) return "the root";
  if (Reduces(a.kind) && a.op != b.op) return "the reduce op";
  if (a.before != b.before || a.after != b.after) return "the scale";
  return "";
}

// Tells apart two groups of equally many tensors: the digest shows that their names differ.
std::string GroupName(const Request& request) {
  std::ostringstream text;
  text << " of names with the digest " << std::hex << request.group;
  return text.str();
}

std::string Sides(const RequestsByRank& by_rank, const ops::Members& members, bool other_names) {
  std::vector<std::pair<std::string, std::vector<int>>> sides;  // in the order of their first ranks
  for (size_t r = 0; r < by_rank.size(); ++r) {
    if (by_rank[r] == nullptr) continue;
    std::string text = Describe(*by_rank[r], members);
    if (other_names) text += GroupName(*by_rank[r]);
    const auto same = std::find_if(
        sides.begin(), sides.end(), [&](const auto& side) { return side.first == text; });
    if (same == sides.end()) {
      sides.push_back({text, {static_cast<int>(r)}});
    } else {
      same->second.push_back(static_cast<int>(r));
    }
  }
  std::vector<std::string> texts;
  for (const auto& [text, ranks] : sides) {
    texts.push_back(Text(members.List(ranks), " submitted ", text));
  }
  return base::Join(texts, "; ");
}

}  // namespace

std::optional<Refusal> Judge(
    std::string_view name, const RequestsByRank& by_rank, const ops::Members& members) {
  const Request* first = nullptr;
  for (const auto& request : by_rank) {
    if (request == nullptr) continue;
    if (first == nullptr) first = request.get();
    if (request.get() == first) continue;
    const std::string difference = Difference(*first, *request);
    if (difference.empty()) continue;
    const bool other_names = difference == "the group" && first->group_size == request->group_size;
    return Refusal{
        ErrorCode::kMismatch, Text(
                                  "tensor '", name, "': the ranks disagree on ", difference, ": ",
                                  Sides(by_rank, members, other_names))};
  }
  const bool rooted = first->kind == Kind::kBroadcast;
  if (rooted && by_rank[static_cast<size_t>(first->root)] == nullptr) {
    return Refusal{
        ErrorCode::kInvalidArgument,
        Text(
            "tensor '", name, "': ", Describe(*first, members), ": the root, ",
            members.List({first->root}), ", has joined and brings nothing")};
  }
  return std::nullopt;
}

}  // namespace dtrun::runtime::named

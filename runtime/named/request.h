#ifndef DTRUN_RUNTIME_NAMED_REQUEST_H_
#define DTRUN_RUNTIME_NAMED_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrun/error.h"
#include "dtrun/types.h"
#include "ops/collective.h"
#include "ops/members.h"
#include "runtime/named/bytes.h"

namespace dtrun::runtime::named {

enum class Kind : uint8_t {
  kAllReduce = DTRUN_NAMED_ALL_REDUCE,
  kAllGather = DTRUN_NAMED_ALL_GATHER,
  kBroadcast = DTRUN_NAMED_BROADCAST,
  kAllToAll = DTRUN_NAMED_ALL_TO_ALL,
  kReduceScatter = DTRUN_NAMED_REDUCE_SCATTER,
  kBarrier,
};

/// "all_reduce" and so on.
const char* NameOf(Kind kind);
/// all_reduce and reduce_scatter.
bool Reduces(Kind kind);

/// What one rank asks for under one name.
struct Request {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;  ///< of kinds that reduce
  int32_t root = 0;              ///< of a broadcast, in the process set
  bool on_gpu = false;
  double before = 1, after = 1;  ///< factors, of kinds that reduce
  std::vector<uint64_t> shape = {};
  std::vector<uint64_t> splits = {};  ///< of an all_to_all: rows to each rank; empty: all alike
  uint32_t group_size = 1;            ///< tensors that are submitted, and complete, together
  uint64_t group = 0;                 ///< digest of their names; 0: it is alone

  bool operator==(const Request&) const = default;

  uint64_t count() const;
  uint64_t bytes() const { return count() * SizeOf(dtype); }
  /// The first dimension, and what one row of it has.
  uint64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  uint64_t row_elements() const;
  uint64_t row_bytes() const { return row_elements() * SizeOf(dtype); }
  /// Rows that go to rank `to` of `size`, of kinds that send rows to ranks.
  uint64_t RowsTo(int to, int size) const;
};

/// "all_reduce (f32[17, 17], sum)"; "broadcast (f32[4], root rank 1)"
std::string Describe(const Request& request, const ops::Members& members);

void Write(const Request& request, ByteWriter& to);
Request ReadRequest(ByteReader& from);

/// A request that can never be done, whatever the other ranks ask for.
struct Refusal {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string text;
};

/// Why the requests of the ranks for the tensor `name` do not fit together; nothing when they do.
/// Null where a rank takes no part. It says who asks for what.
std::optional<Refusal> Judge(
    std::string_view name, const std::vector<std::shared_ptr<const Request>>& by_rank,
    const ops::Members& members);

}  // namespace dtrun::runtime::named

#endif

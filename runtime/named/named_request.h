#ifndef DTRUN_RUNTIME_NAMED_NAMED_REQUEST_H_
#define DTRUN_RUNTIME_NAMED_NAMED_REQUEST_H_

#include <atomic>
#include <bit>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "ops/collective/collective.h"

namespace dtrun::runtime::named {

/// Writes numbers and names as bytes. Small numbers take one byte.
class ByteWriter {
 public:
  void Number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void Signed(int64_t value) {
    Number(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  void Fixed(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> 8 * i);
  }
  void Real(double value) { Fixed(std::bit_cast<uint64_t>(value)); }
  void Name(std::string_view name) {
    Number(name.size());
    bytes_ += name;
  }

  const std::string& bytes() const { return bytes_; }
  void Clear() { bytes_.clear(); }

 private:
  std::string bytes_;
};

/// Reads the bytes of a ByteWriter. Throws Error kSystem if the bytes are damaged: no rank of this
/// build wrote them.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  uint64_t Number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw Damaged();
  }
  int64_t Signed() {
    const uint64_t value = Number();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  uint64_t Fixed() {
    const std::string_view bytes = Take(8);
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << 8 * i;
    }
    return value;
  }
  double Real() { return std::bit_cast<double>(Fixed()); }
  std::string_view Name() { return Take(Number()); }

 private:
  static Error Damaged() {
    return Error(ErrorCode::kSystem, "named queue: the announcement of a rank cannot be read");
  }
  std::string_view Take(uint64_t count) {
    if (count > rest_.size()) throw Damaged();
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
};

enum class Kind : uint8_t {
  kAllReduce = DTRUN_NAMED_ALL_REDUCE,
  kAllGather = DTRUN_NAMED_ALL_GATHER,
  kBroadcast = DTRUN_NAMED_BROADCAST,
  kAllToAll = DTRUN_NAMED_ALL_TO_ALL,
  kReduceScatter = DTRUN_NAMED_REDUCE_SCATTER,
  kBarrier,
};

/// The name of the kind: "all_reduce" and so on.
const char* NameOf(Kind kind);
/// True for all_reduce and reduce_scatter.
bool Reduces(Kind kind);

/// The request of one rank under one name.
struct Request {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;  ///< for kinds that reduce
  int32_t root = 0;              ///< for a broadcast, in the process set
  double before = 1, after = 1;  ///< factors, for kinds that reduce
  std::vector<uint64_t> shape = {};
  std::vector<uint64_t> splits = {};  ///< for an all_to_all: rows to each rank; empty: evenly
  uint32_t group_size = 1;            ///< tensors of the group, submitted and completed together
  uint64_t group = 0;                 ///< digest of the group's names; 0: no group

  bool operator==(const Request&) const = default;

  uint64_t count() const;
  uint64_t bytes() const { return count() * SizeOf(dtype); }
  /// The size of the first dimension, and the elements of one of its rows.
  uint64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  uint64_t row_elements() const;
  uint64_t row_bytes() const { return row_elements() * SizeOf(dtype); }
  /// The rows for rank `to` of `size`, for kinds that send rows to ranks.
  uint64_t RowsTo(int to, int size) const;
};

/// Text for messages: "all_reduce (f32[17, 17], sum)"; "broadcast (f32[4], root rank 1)"
std::string Describe(const Request& request, const ops::Members& members);

void Write(const Request& request, ByteWriter& to);
Request ReadRequest(ByteReader& from);

/// The error with which a request ends, if it cannot be done.
struct Refusal {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string text;
  std::vector<int> ranks = {};  ///< that it is about, in the world
};

/// Compares the requests of the ranks for the tensor `name`. An entry is null if its rank takes no
/// part. Returns nullopt if the requests fit together. Otherwise returns the error, which names the
/// ranks of each request.
std::optional<Refusal> Judge(
    std::string_view name, const std::vector<std::shared_ptr<const Request>>& by_rank,
    const ops::Members& members);

struct Submission;
struct Tensor;

/// How long this rank has waited for others. Times are on the queue's patience clock; negative: not
/// yet.
struct OthersAwaited {
  base::Duration since = base::Duration(-1);     ///< when the wait was first seen
  base::Duration deserted = base::Duration(-1);  ///< when one of the others was first seen to leave
  bool warned = false, withdrawn = false;
};

/// The memory of a tensor on a GPU, which goes through host memory.
struct GpuTensor {
  std::unique_ptr<char[]> input;  ///< a copy of the input
  Buffer result = {};             ///< its place on the GPU; host memory: there is none
};

/// One tensor of a submission, on this rank.
struct Part {
  Submission* submission = nullptr;
  Tensor* tensor = nullptr;  ///< null once the submission is done
  std::shared_ptr<const Request> request;
  Buffer input = {}, output = {};
  OthersAwaited others;  ///< that have not announced the tensor

  GpuTensor gpu = {};

  // The result; written before the submission is done.
  std::unique_ptr<char[]> owned;  ///< memory of `result`, if the queue allocated it
  Buffer result = {};
  std::vector<uint64_t> result_shape = {};     ///< empty: the shape of the request
  std::vector<uint64_t> received_splits = {};  ///< for an all_to_all: rows from each rank
};

inline const std::vector<uint64_t>& ShapeOf(const Part& part) {
  return part.result_shape.empty() ? part.request->shape : part.result_shape;
}

/// Tensors that were submitted together, a barrier, or a join. The queue writes a submission until
/// it is `done`. Afterwards, the submitter reads it.
struct Submission {
 private:
  Part only_;  // saves an allocation: most submissions have one part
  std::vector<Part> several_;

 public:
  explicit Submission(size_t part_count)
      : several_(part_count > 1 ? part_count : 0),
        parts(part_count > 1 ? several_.data() : &only_, part_count) {}
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

  const std::span<Part> parts;
  size_t unfinished = 0;  ///< parts that are not done
  std::function<void(const std::shared_ptr<Submission>&)> callback = nullptr;
  std::exception_ptr error;
  int last_joined = -1;  ///< for a join: the last rank that joined
  std::atomic<bool> done{false};
  std::shared_ptr<Submission> self = nullptr;  ///< the queue's reference, until done
};

}  // namespace dtrun::runtime::named

#endif  // DTRUN_RUNTIME_NAMED_NAMED_REQUEST_H_

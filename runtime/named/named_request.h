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

/// Numbers and names as bytes: small numbers take one.
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

/// The reverse. Throws Error kSystem when the bytes end too early: no rank of this build wrote
/// them.
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
    return Error(ErrorCode::kSystem, "named queue: what a rank announced cannot be read");
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

struct Submission;
struct Tensor;

/// One tensor of a submission, on this rank.
struct Part {
  Submission* submission = nullptr;
  Tensor* tensor = nullptr;  ///< until it is done
  std::shared_ptr<const Request> request;
  Buffer input = {}, output = {};
  /// When this rank first saw that others have not announced it, on the clock of the queue's
  /// patience; negative: it has not.
  base::Duration since = base::Duration(-1);
  bool warned = false, withdrawn = false;

  // The result; written before the submission is done.
  std::unique_ptr<char[]> owned;  ///< the memory of `result`, where the queue made it
  Buffer result = {};
  std::vector<uint64_t> result_shape = {};     ///< empty: that of the request
  std::vector<uint64_t> received_splits = {};  ///< of an all_to_all: rows from each rank
};

inline const std::vector<uint64_t>& ShapeOf(const Part& part) {
  return part.result_shape.empty() ? part.request->shape : part.result_shape;
}

/// Tensors that were submitted together, a barrier or a join: done as one. The queue writes it
/// until `done`, whoever submitted it reads it then.
struct Submission {
 private:
  Part only_;  // most submissions have one part: it needs no memory of its own
  std::vector<Part> several_;

 public:
  explicit Submission(size_t part_count)
      : several_(part_count > 1 ? part_count : 0),
        parts(part_count > 1 ? several_.data() : &only_, part_count) {}
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

  const std::span<Part> parts;
  size_t unfinished = 0;  ///< parts
  std::function<void(const std::shared_ptr<Submission>&)> callback = nullptr;
  std::exception_ptr error;
  int last_joined = -1;  ///< of a join
  std::atomic<bool> done{false};
  std::shared_ptr<Submission> self = nullptr;  ///< the queue's, while it is under way
};

}  // namespace dtrun::runtime::named

#endif  // DTRUN_RUNTIME_NAMED_NAMED_REQUEST_H_

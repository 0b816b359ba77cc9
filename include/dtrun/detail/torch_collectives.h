#ifndef DTRUN_DETAIL_TORCH_COLLECTIVES_H_
#define DTRUN_DETAIL_TORCH_COLLECTIVES_H_

#include <dtrun/detail/torch_tensors.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace torch {

// Collectives on tensors: any dense tensor of the CPU or a GPU. A tensor that is not contiguous
// goes through a copy. On a GPU, the functions enqueue into the current stream, and the host does
// not wait: see dtrun/device_memory.h. No function keeps a graph for autograd.
//
// Functions that move rows cut tensors along dimension 0. A scalar counts as one row of one
// element. All ranks have rows of the same type and shape, otherwise kMismatch on all ranks.

/// A started operation on tensors. Do not touch the operation's tensors until Wait has returned.
/// The destructor waits. Not thread-safe.
class [[nodiscard]] TensorWork {
 public:
  /// Keeps `input` and `result` until the operation is done. `in_place`: the result is in `input`.
  TensorWork(Work work, internal::Staged input, Tensor result, bool in_place)
      : state_(std::make_unique<State>(State{std::move(work), std::move(input), in_place})),
        result_(std::move(result)) {}
  /// The other object then has no operation.
  TensorWork(TensorWork&&) = default;
  TensorWork& operator=(TensorWork&&) = delete;
  ~TensorWork() {
    try {
      Wait();
    } catch (const std::exception&) {
    }
  }

  /// Advances the operation without blocking. Returns true once it has finished; Wait then returns
  /// at once. Throws the operation's error.
  bool Test() { return state_ == nullptr || state_->work.Test(); }

  /// Blocks until the operation has finished. Returns the result, which is undefined on ranks that
  /// get none. Throws the operation's error.
  Tensor Wait() {
    if (state_ == nullptr) return result_;
    const std::unique_ptr<State> state = std::move(state_);
    state->work.Wait();
    if (state->in_place) {
      state->input.Finish();
    } else {
      state->input.lane().Leave();
    }
    return result_;
  }

 private:
  struct State {
    Work work;
    internal::Staged input;
    bool in_place;
  };

  std::unique_ptr<State> state_;  // null: waited for
  Tensor result_;
};

namespace internal {

/// The rows of a tensor.
class Rows {
 public:
  explicit Rows(const Tensor& tensor)
      : sizes_(tensor.dim() == 0 ? std::vector<int64_t>{1} : tensor.sizes().vec()) {}

  uint64_t count() const { return static_cast<uint64_t>(sizes_[0]); }
  uint64_t elements() const { return static_cast<uint64_t>(c10::multiply_integers(Shape())); }
  /// The shape of a row.
  at::IntArrayRef Shape() const { return at::IntArrayRef(sizes_).slice(1); }

  /// Elements by rank, for numbers of rows by rank.
  Counts Elements(const Counts& rows) const {
    Counts counts;
    for (const uint64_t n : rows) counts.push_back(n * elements());
    return counts;
  }

  /// A new tensor of `rows` such rows.
  Tensor Make(uint64_t rows, const at::TensorOptions& options) const {
    std::vector<int64_t> sizes = sizes_;
    sizes[0] = static_cast<int64_t>(rows);
    return ::torch::empty(sizes, options.requires_grad(false));
  }

  /// Collective: throws kMismatch unless the rows of all ranks are alike.
  void Agree(Communicator& communicator, const char* operation, DType dtype) const {
    AgreeOn(communicator, operation, {Text(NameOf(dtype), " rows of ", Shape())});
  }

 private:
  std::vector<int64_t> sizes_;
};

inline uint64_t Sum(const Counts& counts) {
  uint64_t sum = 0;
  for (const uint64_t n : counts) sum += n;
  return sum;
}

/// Row counts of the caller, one for each rank, which add up to `rows`. If `splits` is empty, the
/// rows are split evenly.
inline Counts CheckedSplits(
    const char* operation, const std::vector<int64_t>& splits, uint64_t rows, int ranks) {
  const auto size = static_cast<uint64_t>(ranks);
  if (splits.empty() && rows % size == 0) return Counts(size, rows / size);
  if (splits.empty()) {
    Refuse(
        ErrorCode::kInvalidArgument, operation, ": ", rows, " rows cannot be split evenly among ",
        ranks, " ranks; expected the rows of each rank in `splits`");
  }
  Counts counts;
  for (const int64_t split : splits) {
    if (split < 0) {
      Refuse(
          ErrorCode::kInvalidArgument, operation, ": `splits` has ", split,
          "; expected 0 or more rows");
    }
    counts.push_back(static_cast<uint64_t>(split));
  }
  if (counts.size() != size || Sum(counts) != rows) {
    Refuse(
        ErrorCode::kInvalidArgument, operation, ": `splits` has ", Sum(counts), " rows for ",
        counts.size(), " ranks; expected ", rows, " rows for ", ranks, " ranks");
  }
  return counts;
}

/// A new tensor as the output of an operation.
inline Buffer OutputOf(const Staged& input, const Tensor& output) {
  input.lane().Enter();  // after the allocation
  return input.lane().BufferOf(output.data_ptr(), output.numel(), input.buffer().dtype);
}

inline TensorWork InPlace(Work work, Staged staged, const Tensor& tensor) {
  return TensorWork(std::move(work), std::move(staged), tensor, true);
}

}  // namespace internal

/// Starts to replace the elements of `tensor` by their reduction over all ranks. Collective; all
/// ranks pass the same shape and type.
///
///   rank 0: {1, 2}   rank 1: {3, 5}   StartAllReduce(world, t)  ->  both {4, 7}
inline TensorWork StartAllReduce(
    Communicator& communicator, const Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
  internal::Staged staged("all_reduce: the tensor", tensor);
  Work work = communicator.StartAllReduce(staged.buffer(), op);
  return internal::InPlace(std::move(work), std::move(staged), tensor);
}
/// StartAllReduce, followed by Wait.
inline void AllReduce(
    Communicator& communicator, const Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
  StartAllReduce(communicator, tensor, op).Wait();
}

/// Starts to replace the elements of `tensor` on rank `root` by their reduction over all ranks. The
/// other ranks' tensors are not changed. Collective; all ranks pass the same shape and type.
inline TensorWork StartReduce(
    Communicator& communicator, const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum) {
  internal::Staged staged("reduce: the tensor", tensor);
  Work work = communicator.StartReduce(staged.buffer(), staged.buffer(), root, op);
  return TensorWork(std::move(work), std::move(staged), tensor, communicator.rank() == root);
}
/// StartReduce, followed by Wait.
inline void Reduce(
    Communicator& communicator, const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum) {
  StartReduce(communicator, tensor, root, op).Wait();
}

/// Starts to replace the elements of `tensor` by the elements of rank `root`. Collective; all ranks
/// pass the same shape and type.
inline TensorWork StartBroadcast(Communicator& communicator, const Tensor& tensor, int root = 0) {
  internal::Staged staged("broadcast: the tensor", tensor);
  Work work = communicator.StartBroadcast(staged.buffer(), root);
  return internal::InPlace(std::move(work), std::move(staged), tensor);
}
/// StartBroadcast, followed by Wait.
inline void Broadcast(Communicator& communicator, const Tensor& tensor, int root = 0) {
  StartBroadcast(communicator, tensor, root).Wait();
}

/// Starts to reduce the tensors of all ranks, and to give each rank its share of the rows: the
/// first rows % size ranks get one row more. The result is a new tensor. Collective; all ranks pass
/// the same shape and type.
///
///   rank 0: {1, 2, 3}   rank 1: {4, 5, 6}   StartReduceScatter(world, t)  ->  {5, 7} and {9}
inline TensorWork StartReduceScatter(
    Communicator& communicator, const Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
  internal::Staged staged("reduce_scatter: the tensor", tensor);
  const internal::Rows rows(tensor);
  const Counts shares = DealRows(rows.count(), 1, communicator.size());
  const Tensor mine = rows.Make(shares[static_cast<size_t>(communicator.rank())], tensor.options());
  Work work = communicator.StartReduceScatter(
      staged.buffer(), internal::OutputOf(staged, mine), op, {}, rows.Elements(shares));
  return TensorWork(std::move(work), std::move(staged), mine, false);
}
/// StartReduceScatter, followed by Wait.
inline Tensor ReduceScatter(
    Communicator& communicator, const Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
  return StartReduceScatter(communicator, tensor, op).Wait();
}

/// Starts to concatenate the rows of all ranks in rank order, on every rank. The ranks may have
/// different numbers of rows, which they exchange before this function returns. Collective.
///
///   rank 0: {{1, 2}}   rank 1: {{3, 4}, {5, 6}}   StartAllGather  ->  {{1, 2}, {3, 4}, {5, 6}}
inline TensorWork StartAllGather(Communicator& communicator, const Tensor& tensor) {
  internal::Staged staged("all_gather: the tensor", tensor);
  const internal::Rows rows(tensor);
  rows.Agree(communicator, "all_gather", staged.buffer().dtype);
  const Counts counts = communicator.AllGatherCounts(rows.count());
  const Tensor all = rows.Make(internal::Sum(counts), tensor.options());
  Work work = communicator.StartAllGather(
      staged.buffer(), internal::OutputOf(staged, all), rows.Elements(counts));
  return TensorWork(std::move(work), std::move(staged), all, false);
}
/// StartAllGather, followed by Wait.
inline Tensor AllGather(Communicator& communicator, const Tensor& tensor) {
  return StartAllGather(communicator, tensor).Wait();
}

/// Concatenates the rows of all ranks in rank order, on rank `root`. Returns an undefined tensor on
/// the other ranks. The ranks may have different numbers of rows. Collective.
inline Tensor Gather(Communicator& communicator, const Tensor& tensor, int root = 0) {
  internal::Staged staged("gather: the tensor", tensor);
  const internal::Rows rows(tensor);
  rows.Agree(communicator, "gather", staged.buffer().dtype);
  const Counts counts = communicator.AllGatherCounts(rows.count());
  if (communicator.rank() != root) {
    communicator.Gather(staged.buffer(), {}, root);
    staged.lane().Leave();
    return Tensor();
  }
  const Tensor all = rows.Make(internal::Sum(counts), tensor.options());
  communicator.Gather(
      staged.buffer(), internal::OutputOf(staged, all), root, rows.Elements(counts));
  staged.lane().Leave();
  return all;
}

/// Gives each rank its rows of the tensor of rank `root`. `splits`, which only the root reads, has
/// the number of rows for each rank; if it is empty, all ranks get the same number. Collective. The
/// other ranks pass any tensor on the device where they want their rows; an undefined tensor means
/// the CPU.
///
///   rank 0: {1, 2, 3}, splits {1, 2}   Scatter(root 0)  ->  {1} and {2, 3}
inline Tensor Scatter(
    Communicator& communicator, const Tensor& tensor, int root = 0,
    const std::vector<int64_t>& splits = {}) {
  // The type, the shape of a row, and the rows of each rank; or nothing, if the root refuses.
  std::vector<int64_t> told;
  std::optional<internal::Staged> staged;
  std::exception_ptr refusal;
  Counts rows_of_ranks;
  if (communicator.rank() == root) {
    try {
      staged.emplace("scatter: the tensor", tensor);
      const internal::Rows rows(tensor);
      rows_of_ranks = internal::CheckedSplits("scatter", splits, rows.count(), communicator.size());
      told.push_back(static_cast<int64_t>(tensor.scalar_type()));
      for (const uint64_t n : rows_of_ranks) told.push_back(static_cast<int64_t>(n));
      for (const int64_t n : rows.Shape()) told.push_back(n);
    } catch (...) {
      refusal = std::current_exception();
    }
  }
  told = BroadcastV(communicator, told, root);
  if (refusal != nullptr) std::rethrow_exception(refusal);
  if (told.empty())
    internal::Refuse(ErrorCode::kInvalidArgument, "scatter: rank ", root, " refuses its arguments");
  const auto size = static_cast<size_t>(communicator.size());
  const auto mine = 1 + static_cast<size_t>(communicator.rank());
  std::vector<int64_t> shape(told.begin() + 1 + static_cast<int64_t>(size), told.end());
  shape.insert(shape.begin(), told[mine]);
  const at::Device device = tensor.defined() ? tensor.device() : at::Device(at::kCPU);
  const Tensor result = ::torch::empty(
      shape, at::TensorOptions().dtype(static_cast<at::ScalarType>(told[0])).device(device));
  const internal::Staged output("scatter: the result", result);
  Counts counts;
  if (staged) counts = internal::Rows(tensor).Elements(rows_of_ranks);
  communicator.Scatter(staged ? staged->buffer() : Buffer(), output.buffer(), root, counts);
  output.lane().Leave();
  return result;
}

/// Rows from all ranks, in rank order.
struct ExchangedRows {
  Tensor rows;                  ///< one after the other
  std::vector<int64_t> splits;  ///< rows from each rank
};

/// Sends the first splits[0] rows of `tensor` to rank 0, the next splits[1] rows to rank 1, and so
/// on, and returns the rows that the ranks send to this rank. If `splits` is empty, each rank gets
/// the same number of rows. Collective.
///
///   rank 0: {1, 2, 3}, splits {1, 2}   rank 1: {4, 5}, splits {0, 2}
///     ->  rank 0: {1}, splits {1, 0}   rank 1: {2, 3, 4, 5}, splits {2, 2}
inline ExchangedRows AllToAll(
    Communicator& communicator, const Tensor& tensor, const std::vector<int64_t>& splits = {}) {
  internal::Staged staged("all_to_all: the tensor", tensor);
  const internal::Rows rows(tensor);
  const Counts sent =
      internal::CheckedSplits("all_to_all", splits, rows.count(), communicator.size());
  rows.Agree(communicator, "all_to_all", staged.buffer().dtype);
  const Counts received = communicator.ExchangeSplits(sent);
  ExchangedRows exchanged = {
      rows.Make(internal::Sum(received), tensor.options()),
      std::vector<int64_t>(received.begin(), received.end())};
  communicator.AllToAll(
      staged.buffer(), internal::OutputOf(staged, exchanged.rows), rows.Elements(sent),
      rows.Elements(received));
  staged.lane().Leave();
  return exchanged;
}

/// Starts to send the elements of `tensor` to rank `peer`: see Communicator::StartSend.
inline TensorWork StartSend(Communicator& communicator, const Tensor& tensor, int peer) {
  internal::Staged staged("send: the tensor", tensor);
  Work work = communicator.StartSend(staged.buffer(), peer);
  return TensorWork(std::move(work), std::move(staged), tensor, false);
}
/// StartSend, followed by Wait.
inline void Send(Communicator& communicator, const Tensor& tensor, int peer) {
  StartSend(communicator, tensor, peer).Wait();
}

/// Starts to receive the elements of `tensor` from rank `peer`, which sends as many elements of the
/// same type.
inline TensorWork StartReceive(Communicator& communicator, const Tensor& tensor, int peer) {
  internal::Staged staged("receive: the tensor", tensor);
  Work work = communicator.StartReceive(staged.buffer(), peer);
  return internal::InPlace(std::move(work), std::move(staged), tensor);
}
/// StartReceive, followed by Wait.
inline void Receive(Communicator& communicator, const Tensor& tensor, int peer) {
  StartReceive(communicator, tensor, peer).Wait();
}

}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_COLLECTIVES_H_

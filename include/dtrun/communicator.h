#ifndef DTRUN_COMMUNICATOR_H_
#define DTRUN_COMMUNICATOR_H_

#include <dtrun/c.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtrun {

/// A started operation. It owns the buffers that it was given until it is done. If an unfinished
/// Work is destroyed, the operation continues without a handle. Not thread-safe.
class [[nodiscard]] Work {
 public:
  /// Takes ownership of `handle`.
  explicit Work(dtrun_work* handle) : handle_(handle) {}

  /// Advances the operation without blocking. Returns true once the operation has finished. Throws
  /// the operation's error.
  bool Test() {
    int32_t done = 0;
    detail::Check(dtrun_work_test(handle_.get(), &done));
    return done != 0;
  }

  /// Blocks until the operation has finished, and advances it meanwhile. Throws the operation's
  /// error: kMismatch, kPeerLost, kTimeout, kSystem.
  void Wait() { detail::Check(dtrun_work_wait(handle_.get())); }

 private:
  std::unique_ptr<dtrun_work, detail::Destroyer<dtrun_work, dtrun_work_destroy>> handle_;
};

/// Zeroed memory, freed with this object. Memory from `Communicator::Allocate` and `AllocateShared`
/// is aligned to 4096 bytes, memory from `AllocateOnDevice` to 256 bytes.
class Memory {
 public:
  /// Takes ownership of `handle`.
  explicit Memory(dtrun_memory* handle) : handle_(handle) {}

  /// The first byte of the memory.
  void* data() const { return dtrun_memory_data(handle_.get()); }
  /// The size of the memory on this rank, in bytes.
  uint64_t bytes() const { return dtrun_memory_bytes(handle_.get()); }

 private:
  std::unique_ptr<dtrun_memory, detail::Destroyer<dtrun_memory, dtrun_memory_destroy>> handle_;
};

/// Elements by rank. Empty: the same number for every rank.
using Counts = std::vector<uint64_t>;

/// Deals `rows` rows of `row_elements` elements to `size` ranks, as reduce_scatter deals elements:
/// the first rows % size ranks get one row more. Returns elements by rank.
///
///   DealRows(5, 10, 2)  ->  {30, 20}
inline Counts DealRows(uint64_t rows, uint64_t row_elements, int size) {
  Counts counts(size > 0 ? static_cast<size_t>(size) : 0);
  detail::Check(dtrun_deal_rows(rows, row_elements, size, counts.data()));
  return counts;
}

/// A fixed set of ranks that exchange data. Every rank starts the same collectives in the same
/// order. Many operations may be under way at once. Not thread-safe: one thread at a time per
/// Communicator; `Duplicate()` gives another one.
///
/// `StartX` returns at once. `X` is StartX followed by Wait. The buffers belong to the Work until
/// it is done. Tables of counts are read before StartX returns. p stands for `size()`.
///
/// **Counts.** A `Counts` has one entry per rank, in elements. If it is empty, all ranks have the
/// same count. A buffer without elements may have null data.
///
/// **In place** means that input and output are the same memory. Each operation says if it allows
/// that. Any other overlap is refused. An input that is not in place is not changed.
///
/// **Arithmetic** of AllReduce, ReduceScatter and Reduce. Each element is combined over the ranks
/// in a balanced tree in rank order, for 5 ranks ((a + b) + c) + (d + e). Therefore the result has
/// the same bits on every rank, in every run, and for mapped and private memory. On several hosts
/// (backend "hierarchical") the ranks of each host are combined first, then the hosts. Then the
/// bits also depend on which ranks share a host, and on the option `wire_dtype`.
///  - f16 and bf16 accumulate in f32 and are rounded once, to nearest, ties to even. On several
///    hosts they are rounded once in each host and once at the end.
///  - Integers wrap. Their average is the wrapped sum, divided, truncated toward zero.
///  - The average of floats is the sum times 1 / p.
///  - The min and the max of a NaN and another float are NaN.
///  - For bools, sum, max and average are "or"; product and min are "and".
///  - A `Scale` multiplies every input by `before` and the result by `after`. Floats are multiplied
///    in the type that they accumulate in. Integers are multiplied in f64, truncated toward zero
///    and clamped to their type. Bools are not scaled.
///
/// **Errors.** Before anything is sent, StartX throws kInvalidArgument (the text names the
/// argument, the value found and the value expected) or kUnavailable (device memory). Wait throws
/// on every rank: kMismatch (with the call of each rank), kPeerLost, kTimeout (with the missing
/// ranks), kSystem. After kMismatch, the next operation works. After kPeerLost or kTimeout, only
/// Reform and the destructor may be called.
class Communicator {
 public:
  /// The owner of a handle.
  enum class Ownership {
    kOwned,    ///< the Communicator destroys the handle
    kBorrowed  ///< it does not: the world belongs to its Context
  };
  /// Wraps `handle`, which is not null.
  Communicator(dtrun_communicator* handle, Ownership ownership)
      : handle_(handle), owned_(ownership == Ownership::kOwned ? handle : nullptr) {}

  /// The rank of this process in the communicator, from 0.
  int rank() const { return dtrun_communicator_rank(handle_); }
  /// The number of ranks of the communicator.
  int size() const { return dtrun_communicator_size(handle_); }
  /// The backend that moves the data: "self", "shm", "hierarchical", "tcp", "ucx" or "mpi".
  std::string backend() const { return dtrun_communicator_backend(handle_); }
  /// The name in errors: "world", "world/1" (the first communicator made from the world),
  /// "world/2:0" (a split, with its colour).
  std::string name() const { return dtrun_communicator_name(handle_); }

  /// Collective: a communicator of the same ranks. Operations of the two never interleave.
  Communicator Duplicate() {
    dtrun_communicator* duplicate = nullptr;
    detail::Check(dtrun_communicator_duplicate(handle_, &duplicate));
    return Communicator(duplicate, Ownership::kOwned);
  }

  /// After kPeerLost or kTimeout: a communicator of the ranks that are left, in rank order.
  /// Collective over these ranks. If another rank is lost meanwhile, it is left out, too. After
  /// kTimeout, a rank for which an operation has waited is left out if it does not come within half
  /// a second after the other ranks. Throws kUnavailable if neither `tcp` nor `ucx` connects the
  /// ranks, kPeerLost if the other ranks go on without this rank, and kTimeout.
  Communicator Reform() {
    dtrun_communicator* left = nullptr;
    detail::Check(dtrun_communicator_reform(handle_, &left));
    return Communicator(left, Ownership::kOwned);
  }

  /// Collective: one communicator for the ranks of each colour, ordered by key and then by rank
  /// here. nullopt for a rank with a negative colour.
  ///
  ///   4 ranks, colours 0 1 0 1, keys 0 0 0 -1  ->  ranks {0, 2} and {3, 1}
  std::optional<Communicator> Split(int colour, int key = 0) {
    dtrun_communicator* part = nullptr;
    detail::Check(dtrun_communicator_split(handle_, colour, key, &part));
    return OwnedOrNone(part);
  }

  /// Collective over all ranks, listed or not: a communicator of the listed ranks, in this order.
  /// All ranks pass the same list, otherwise kMismatch. nullopt for a rank that is not listed.
  ///
  ///   Subset({3, 1})  ->  rank 3 is its rank 0, rank 1 its rank 1
  std::optional<Communicator> Subset(const std::vector<int>& ranks) {
    const std::vector<int32_t> list(ranks.begin(), ranks.end());
    dtrun_communicator* subset = nullptr;
    detail::Check(dtrun_communicator_subset(handle_, list.data(), list.size(), &subset));
    return OwnedOrNone(subset);
  }

  /// Collective: allocates memory. If the backend can, this communicator's collectives reduce this
  /// memory in place, without a copy. Ranks may ask for different sizes. If ranks share a host and
  /// ask for 2 MiB or more, all pages are allocated at once, near the calling thread. The pages are
  /// huge pages if the kernel can (Linux 6.1 and later). Other pages are allocated and placed at
  /// the first touch.
  Memory Allocate(uint64_t bytes) {
    dtrun_memory* memory = nullptr;
    detail::Check(dtrun_communicator_allocate(handle_, bytes, &memory));
    return Memory(memory);
  }

  /// Collective: allocates zeroed memory that all ranks share. `bytes` is the same on all ranks.
  /// The program orders writes and reads of different ranks, for example by a barrier.
  /// kUnavailable: the ranks do not share a host.
  Memory AllocateShared(uint64_t bytes) {
    dtrun_memory* memory = nullptr;
    detail::Check(dtrun_communicator_allocate_shared(handle_, bytes, &memory));
    return Memory(memory);
  }

  /// Starts making `output` the reduction of the inputs of all ranks, on every rank. All ranks pass
  /// the same count and dtype. In place: the output is the input.
  ///
  ///   rank 0: {1, 2}   rank 1: {3, 5}   StartAllReduce(kSum)  ->  both {4, 7}
  Work StartAllReduce(Buffer input, Buffer output, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    const dtrun_scale factors = detail::ToC(scale);
    return Started([&](dtrun_work** work) {
      return dtrun_start_all_reduce(
          handle_, detail::ToC(input), detail::ToC(output), static_cast<int32_t>(op), &factors,
          work);
    });
  }
  /// The same in place: `buffer` is the input and the output.
  Work StartAllReduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    return StartAllReduce(buffer, buffer, op, scale);
  }

  /// Starts making `output` this rank's share of the reduction of all inputs. The shares lie in
  /// rank order and cover the input. `shares`, the same on all ranks, has the counts of the shares.
  /// If it is empty, the elements are dealt: the first input.count % p ranks get one element more
  /// (DealRows deals whole rows). In place: the output is this rank's share of the input.
  /// Afterwards the rest of the input is unspecified.
  ///
  ///   rank 0: {1, 2, 3}   rank 1: {4, 5, 6}   StartReduceScatter(kSum)  ->  {5, 7} and {9}
  Work StartReduceScatter(
      Buffer input, Buffer output, ReduceOp op = ReduceOp::kSum, Scale scale = {},
      const Counts& shares = {}) {
    const dtrun_scale factors = detail::ToC(scale);
    const uint64_t* table = Table("reduce_scatter", "the shares", shares);
    return Started([&](dtrun_work** work) {
      return dtrun_start_reduce_scatter(
          handle_, detail::ToC(input), detail::ToC(output), static_cast<int32_t>(op), &factors,
          table, work);
    });
  }

  /// Starts making `output` the reduction of all inputs on rank `root`. The other ranks' `output`
  /// is ignored. In place: the output is the input.
  ///
  ///   rank 0: {1, 2}   rank 1: {3, 5}   StartReduce(root 1, kSum)  ->  rank 1: {4, 7}
  Work StartReduce(
      Buffer input, Buffer output, int root, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    const dtrun_scale factors = detail::ToC(scale);
    return Started([&](dtrun_work** work) {
      return dtrun_start_reduce(
          handle_, detail::ToC(input), detail::ToC(output), root, static_cast<int32_t>(op),
          &factors, work);
    });
  }

  /// Starts copying the `buffer` of rank `root` into the `buffer` of every other rank.
  ///
  ///   rank 0: {1, 2}   rank 1: {3, 5}   StartBroadcast(root 1)  ->  both {3, 5}
  Work StartBroadcast(Buffer buffer, int root) {
    return Started([&](dtrun_work** work) {
      return dtrun_start_broadcast(handle_, detail::ToC(buffer), root, work);
    });
  }

  /// Starts filling `output` with the inputs of all ranks in rank order, on every rank.
  /// `receive_counts[r]` is the count of rank r's input. Empty: all ranks have the same count as
  /// this rank. In place: the input is this rank's part of the output.
  ///
  ///   rank 0: {1, 2}   rank 1: {3}   StartAllGather({2, 1})  ->  both {1, 2, 3}
  Work StartAllGather(Buffer input, Buffer output, const Counts& receive_counts = {}) {
    const uint64_t* receives = Table("all_gather", "the receive counts", receive_counts);
    return Started([&](dtrun_work** work) {
      return dtrun_start_all_gather(
          handle_, detail::ToC(input), detail::ToC(output), receives, work);
    });
  }

  /// Starts sending a part of `input` to every rank, this rank included. The input has the parts in
  /// the order of their destination ranks, the output in the order of their source ranks.
  /// `send_counts[r]` elements go to rank r, and `receive_counts[r]` elements come from rank r;
  /// ExchangeSplits computes the receive counts. If rank a expects a different count from rank b
  /// than b sends to a, kMismatch names the pair. Both empty: each part has input.count / p
  /// elements, and p divides input.count. Never in place.
  ///
  ///   rank 0: {1, 2, 3}, sends {1, 2}, receives {1, 0}      rank 0: {1}
  ///   rank 1: {4, 5}, sends {0, 2}, receives {2, 2}     ->  rank 1: {2, 3, 4, 5}
  Work StartAllToAll(
      Buffer input, Buffer output, const Counts& send_counts = {},
      const Counts& receive_counts = {}) {
    const uint64_t* sends = Table("all_to_all", "the send counts", send_counts);
    const uint64_t* receives = Table("all_to_all", "the receive counts", receive_counts);
    return Started([&](dtrun_work** work) {
      return dtrun_start_all_to_all(
          handle_, detail::ToC(input), detail::ToC(output), sends, receives, work);
    });
  }

  /// Starts filling `output` with the inputs of all ranks in rank order, on rank `root`. The other
  /// ranks' `output` and `receive_counts` are ignored. `receive_counts[r]` is the count of rank r's
  /// input. Empty: all ranks have the same count as the root. In place: the root's input is its
  /// part of the output.
  ///
  ///   rank 0: {1, 2}   rank 1: {3}   StartGather(root 0, {2, 1})  ->  rank 0: {1, 2, 3}
  Work StartGather(Buffer input, Buffer output, int root, const Counts& receive_counts = {}) {
    const uint64_t* receives =
        rank() == root ? Table("gather", "the receive counts", receive_counts) : nullptr;
    return Started([&](dtrun_work** work) {
      return dtrun_start_gather(
          handle_, detail::ToC(input), detail::ToC(output), root, receives, work);
    });
  }

  /// Starts filling `output` with this rank's part of the input of rank `root`. The input has the
  /// parts in rank order. The other ranks' `input` and `send_counts` are ignored. `send_counts[r]`
  /// is the count of rank r's output. Empty: all ranks have the same count as the root. In place:
  /// the root's output is its part of the input.
  ///
  ///   rank 0: {1, 2, 3}   StartScatter(root 0, {2, 1})  ->  {1, 2} and {3}
  Work StartScatter(Buffer input, Buffer output, int root, const Counts& send_counts = {}) {
    const uint64_t* sends =
        rank() == root ? Table("scatter", "the send counts", send_counts) : nullptr;
    return Started([&](dtrun_work** work) {
      return dtrun_start_scatter(
          handle_, detail::ToC(input), detail::ToC(output), root, sends, work);
    });
  }

  /// Starts a barrier. It is done when every rank has started it.
  Work StartBarrier() {
    return Started([&](dtrun_work** work) { return dtrun_start_barrier(handle_, work); });
  }

  /// Starts sending `buffer` to rank `peer`. The n-th send of rank a to rank b matches the n-th
  /// receive of b from a. Both have the same count and dtype, otherwise kMismatch on both ranks.
  /// Messages and collectives do not wait for each other. Start all sends and receives of an
  /// exchange before you wait for any of them: a wait for a send may block until the peer starts
  /// its receive.
  ///
  ///   right:  Work in = StartReceive(b, peer), out = StartSend(a, peer);  in.Wait(), out.Wait();
  ///   wrong:  Send(a, peer);  Receive(b, peer);
  Work StartSend(Buffer buffer, int peer) {
    return Started([&](dtrun_work** work) {
      return dtrun_start_send(handle_, detail::ToC(buffer), peer, work);
    });
  }
  /// Starts receiving into `buffer` from rank `peer`. See StartSend.
  Work StartReceive(Buffer buffer, int peer) {
    return Started([&](dtrun_work** work) {
      return dtrun_start_receive(handle_, detail::ToC(buffer), peer, work);
    });
  }

  /// StartAllReduce, followed by Wait.
  void AllReduce(Buffer input, Buffer output, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    StartAllReduce(input, output, op, scale).Wait();
  }
  /// StartAllReduce in place, followed by Wait.
  void AllReduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    StartAllReduce(buffer, op, scale).Wait();
  }
  /// StartReduceScatter, followed by Wait.
  void ReduceScatter(
      Buffer input, Buffer output, ReduceOp op = ReduceOp::kSum, Scale scale = {},
      const Counts& shares = {}) {
    StartReduceScatter(input, output, op, scale, shares).Wait();
  }
  /// StartReduce, followed by Wait.
  void Reduce(
      Buffer input, Buffer output, int root, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    StartReduce(input, output, root, op, scale).Wait();
  }
  /// StartBroadcast, followed by Wait.
  void Broadcast(Buffer buffer, int root) { StartBroadcast(buffer, root).Wait(); }
  /// StartAllGather, followed by Wait.
  void AllGather(Buffer input, Buffer output, const Counts& receive_counts = {}) {
    StartAllGather(input, output, receive_counts).Wait();
  }
  /// StartAllToAll, followed by Wait.
  void AllToAll(
      Buffer input, Buffer output, const Counts& send_counts = {},
      const Counts& receive_counts = {}) {
    StartAllToAll(input, output, send_counts, receive_counts).Wait();
  }
  /// StartGather, followed by Wait.
  void Gather(Buffer input, Buffer output, int root, const Counts& receive_counts = {}) {
    StartGather(input, output, root, receive_counts).Wait();
  }
  /// StartScatter, followed by Wait.
  void Scatter(Buffer input, Buffer output, int root, const Counts& send_counts = {}) {
    StartScatter(input, output, root, send_counts).Wait();
  }
  /// StartBarrier, followed by Wait.
  void Barrier() { StartBarrier().Wait(); }
  /// StartSend, followed by Wait.
  void Send(Buffer buffer, int peer) { StartSend(buffer, peer).Wait(); }
  /// StartReceive, followed by Wait.
  void Receive(Buffer buffer, int peer) { StartReceive(buffer, peer).Wait(); }

  /// Collective: returns the argument `mine` of every rank, by rank. These are the receive counts
  /// of an AllGather.
  ///
  ///   rank 0: 2   rank 1: 7   AllGatherCounts  ->  both {2, 7}
  Counts AllGatherCounts(uint64_t mine) {
    Counts all(static_cast<size_t>(size()));
    AllGather(Buffer(&mine, 1), Buffer(all.data(), all.size()));
    return all;
  }

  /// Collective: `splits[r]` elements will go to rank r. Returns the number of elements from each
  /// rank: the receive counts of an AllToAll with these send counts.
  ///
  ///   rank 0: {1, 2}   rank 1: {0, 2}   ExchangeSplits  ->  {1, 0} and {2, 2}
  Counts ExchangeSplits(const Counts& splits) {
    CheckSize("exchange_splits", "the splits", splits);
    Counts sent = splits, received(splits.size());
    AllToAll(Buffer(sent.data(), sent.size()), Buffer(received.data(), received.size()));
    return received;
  }

  /// The handle for the C ABI. Valid as long as this object or, if it is borrowed, its Context.
  dtrun_communicator* handle() const { return handle_; }

 private:
  template <typename Start>
  static Work Started(const Start& start) {
    dtrun_work* work = nullptr;
    detail::Check(start(&work));
    return Work(work);
  }

  static std::optional<Communicator> OwnedOrNone(dtrun_communicator* handle) {
    if (handle == nullptr) return std::nullopt;
    return Communicator(handle, Ownership::kOwned);
  }

  // The C ABI reads one count per rank.
  void CheckSize(const char* operation, const char* name, const Counts& counts) const {
    if (counts.size() == static_cast<size_t>(size())) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string(operation) + ": " + name + ": found " + std::to_string(counts.size()) +
            " counts; expected one for each of " + std::to_string(size()) + " ranks");
  }

  const uint64_t* Table(const char* operation, const char* name, const Counts& counts) const {
    if (counts.empty()) return nullptr;
    CheckSize(operation, name, counts);
    return counts.data();
  }

  dtrun_communicator* handle_;
  std::unique_ptr<
      dtrun_communicator, detail::Destroyer<dtrun_communicator, dtrun_communicator_destroy>>
      owned_;
};

}  // namespace dtrun

#endif

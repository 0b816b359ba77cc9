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

/// One started operation. It owns the buffers it was given until it is done. Not thread-safe.
/// Destroying an unfinished Work lets the operation go on without a handle.
class [[nodiscard]] Work {
 public:
  explicit Work(dtrun_work* handle) : handle_(handle) {}

  /// Lets the operation progress without blocking; true once it has finished. Throws its error.
  bool Test() {
    int32_t done = 0;
    detail::Check(dtrun_work_test(handle_.get(), &done));
    return done != 0;
  }

  /// Blocks, driving progress, until the operation has finished. Throws its error: kMismatch,
  /// kPeerLost, kTimeout, kSystem.
  void Wait() { detail::Check(dtrun_work_wait(handle_.get())); }

 private:
  std::unique_ptr<dtrun_work, detail::Destroyer<dtrun_work, dtrun_work_destroy>> handle_;
};

/// Memory from `Communicator::Allocate`: zeroed, aligned to 4096 bytes, freed with this object.
class Memory {
 public:
  explicit Memory(dtrun_memory* handle) : handle_(handle) {}

  void* data() const { return dtrun_memory_data(handle_.get()); }
  uint64_t bytes() const { return dtrun_memory_bytes(handle_.get()); }

 private:
  std::unique_ptr<dtrun_memory, detail::Destroyer<dtrun_memory, dtrun_memory_destroy>> handle_;
};

/// Elements by rank. Empty: the same number for every rank.
using Counts = std::vector<uint64_t>;

/// How `rows` rows of `row_elements` elements are dealt to `size` ranks, as reduce_scatter deals
/// elements: the first rows % size ranks get one row more.
///
///   DealRows(5, 10, 2)  ->  {30, 20}
inline Counts DealRows(uint64_t rows, uint64_t row_elements, int size) {
  Counts counts(size > 0 ? static_cast<size_t>(size) : 0);
  detail::Check(dtrun_deal_rows(rows, row_elements, size, counts.data()));
  return counts;
}

/// A fixed set of ranks that exchange data. Collectives are started by every rank, in the same
/// order; many may be under way at once. Not thread-safe: one thread at a time per Communicator;
/// `Duplicate()` gives another one.
///
/// `StartX` returns at once and `X` is StartX and Wait. The buffers belong to the Work until it is
/// done; tables of counts are read before StartX returns. p stands for `size()`.
///
/// **Counts.** A `Counts` has one entry per rank, in elements; empty: the same for every rank. A
/// buffer without elements may have null data.
///
/// **In place** means that input and output are the same memory. Each operation says where it may
/// be; any other overlap is refused. An input that is not in place is not changed.
///
/// **Arithmetic** of AllReduce, ReduceScatter and Reduce: element by element over the ranks,
/// combined in a balanced tree in rank order, 5 ranks: ((a + b) + c) + (d + e). So the result has
/// the same bits on every rank, in every run, and whether memory is mapped or private. On several
/// hosts (backend "hierarchical") the ranks of each host are combined so, then the hosts: the bits
/// also depend on which ranks share a host, and on the option `wire_dtype`.
///  - f16 and bf16 accumulate in f32 and are rounded once (on several hosts: once in each host, and
///    once at the end), to nearest, ties to even.
///  - Integers wrap. Their average is the wrapped sum, divided, truncated toward zero.
///  - The average of floats is the sum times 1 / p.
///  - Of a NaN and another float, min and max are NaN.
///  - On bools sum, max and average are "or", product and min "and".
///  - A `Scale` multiplies every input by `before` and the result by `after`: floats in the type
///    they accumulate in, integers in f64, truncated toward zero and kept inside their type. Bools
///    are not scaled.
///
/// **Errors.** StartX throws kInvalidArgument (the text names the argument, what was found and what
/// was expected) or kUnavailable (device memory) before anything is sent. Wait throws, on every
/// rank, kMismatch (who called what; the next operation is unharmed), kPeerLost, kTimeout (who has
/// not come) and kSystem. After kPeerLost or kTimeout it is unusable; destroy it.
class Communicator {
 public:
  /// Takes ownership, unless `borrowed` (the world belongs to its Context).
  enum class Ownership { kOwned, kBorrowed };
  Communicator(dtrun_communicator* handle, Ownership ownership)
      : handle_(handle), owned_(ownership == Ownership::kOwned ? handle : nullptr) {}

  int rank() const { return dtrun_communicator_rank(handle_); }
  int size() const { return dtrun_communicator_size(handle_); }
  /// Name of the backend that moves the data: "self", "shm", "hierarchical" or "mpi".
  std::string backend() const { return dtrun_communicator_backend(handle_); }
  /// What errors call it: "world", "world/1" (the first one made from the world), "world/2:0" (a
  /// split, with its colour).
  std::string name() const { return dtrun_communicator_name(handle_); }

  /// Collective: the same ranks, with operations of its own that never interleave with this one's.
  Communicator Duplicate() {
    dtrun_communicator* duplicate = nullptr;
    detail::Check(dtrun_communicator_duplicate(handle_, &duplicate));
    return Communicator(duplicate, Ownership::kOwned);
  }

  /// Collective: one communicator for the ranks of each colour, ordered by key and then by rank
  /// here; none for a rank whose colour is negative.
  ///
  ///   4 ranks, colours 0 1 0 1, keys 0 0 0 -1  ->  ranks {0, 2} and {3, 1}
  std::optional<Communicator> Split(int colour, int key = 0) {
    dtrun_communicator* part = nullptr;
    detail::Check(dtrun_communicator_split(handle_, colour, key, &part));
    return OwnedOrNone(part);
  }

  /// Collective, for the ranks that are not listed as well: a communicator of these ranks, in this
  /// order, which is the same everywhere (else kMismatch); none for the others.
  ///
  ///   Subset({3, 1})  ->  rank 3 is its rank 0, rank 1 its rank 1
  std::optional<Communicator> Subset(const std::vector<int>& ranks) {
    const std::vector<int32_t> list(ranks.begin(), ranks.end());
    dtrun_communicator* subset = nullptr;
    detail::Check(dtrun_communicator_subset(handle_, list.data(), list.size(), &subset));
    return OwnedOrNone(subset);
  }

  /// Collective: memory that this communicator's collectives reduce in place, without a copy, where
  /// the backend can. Ranks may ask for different sizes. Where ranks share a host and ask for 2 MiB
  /// or more, all of it is taken at once, near the thread that calls, in huge pages if the kernel
  /// can (Linux 6.1 and later); other pages are taken and placed when touched first.
  Memory Allocate(uint64_t bytes) {
    dtrun_memory* memory = nullptr;
    detail::Check(dtrun_communicator_allocate(handle_, bytes, &memory));
    return Memory(memory);
  }

  /// Collective: zeroed memory of which all ranks have the same, `bytes` of it. What one of them
  /// writes and another reads is for the program to order, by a barrier say. kUnavailable where the
  /// ranks do not share a host.
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
  /// In place.
  Work StartAllReduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    return StartAllReduce(buffer, buffer, op, scale);
  }

  /// Starts making `output` this rank's share of the reduction of all inputs. The shares lie in
  /// rank order and cover the input; `shares`, the same on all ranks, has their counts. Empty:
  /// dealt, so that the first input.count % p ranks get one element more (DealRows deals whole
  /// rows). In place: the output is this rank's share of the input; what the rest of the input
  /// holds afterwards is unspecified.
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

  /// Starts making `output` the reduction of all inputs on rank `root`; elsewhere it is ignored. In
  /// place: the output is the input.
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

  /// Starts replacing `buffer` on every rank by that of rank `root`.
  ///
  ///   rank 0: {1, 2}   rank 1: {3, 5}   StartBroadcast(root 1)  ->  both {3, 5}
  Work StartBroadcast(Buffer buffer, int root) {
    return Started([&](dtrun_work** work) {
      return dtrun_start_broadcast(handle_, detail::ToC(buffer), root, work);
    });
  }

  /// Starts filling `output` with the inputs of all ranks in rank order, on every rank. Rank r
  /// brings receive_counts[r] elements; empty: all bring as many as this rank. In place: the input
  /// is this rank's part of the output.
  ///
  ///   rank 0: {1, 2}   rank 1: {3}   StartAllGather({2, 1})  ->  both {1, 2, 3}
  Work StartAllGather(Buffer input, Buffer output, const Counts& receive_counts = {}) {
    const uint64_t* receives = Table("all_gather", "the receive counts", receive_counts);
    return Started([&](dtrun_work** work) {
      return dtrun_start_all_gather(
          handle_, detail::ToC(input), detail::ToC(output), receives, work);
    });
  }

  /// Starts sending a part of `input` to every rank, this one too. The parts lie in the input in
  /// the order of the ranks they go to, in the output in that of the ranks they come from. What
  /// rank a expects from rank b (receive_counts[b] on a) is what b sends to a (send_counts[a] on
  /// b), else kMismatch names the pair; ExchangeSplits tells what to expect. Both empty:
  /// input.count / p each, without rest. Never in place.
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

  /// Starts filling `output` with the inputs of all ranks in rank order, on rank `root`; elsewhere
  /// it and `receive_counts` are ignored. Rank r brings receive_counts[r] elements; empty: all
  /// bring as many as the root. In place: the root's input is its part of the output.
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

  /// Starts filling `output` with this rank's part of the input of rank `root`, in which the parts
  /// lie in rank order; elsewhere `input` and `send_counts` are ignored. Rank r gets send_counts[r]
  /// elements; empty: all get as many as the root. In place: the root's output is its part of the
  /// input.
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

  /// Done when every rank has started it.
  Work StartBarrier() {
    return Started([&](dtrun_work** work) { return dtrun_start_barrier(handle_, work); });
  }

  /// Messages: the n-th send of rank a to rank b meets the n-th receive of b from a, with the same
  /// count and dtype, else kMismatch on both. They and collectives do not wait for each other.
  /// Start the sends and receives of an exchange first and wait then: to wait for a send before the
  /// peer has started its receive may block.
  ///
  ///   right:  Work in = StartReceive(b, peer), out = StartSend(a, peer);  in.Wait(), out.Wait();
  ///   wrong:  Send(a, peer);  Receive(b, peer);
  Work StartSend(Buffer buffer, int peer) {
    return Started([&](dtrun_work** work) {
      return dtrun_start_send(handle_, detail::ToC(buffer), peer, work);
    });
  }
  Work StartReceive(Buffer buffer, int peer) {
    return Started([&](dtrun_work** work) {
      return dtrun_start_receive(handle_, detail::ToC(buffer), peer, work);
    });
  }

  /// The same operations, started and waited for.
  void AllReduce(Buffer input, Buffer output, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    StartAllReduce(input, output, op, scale).Wait();
  }
  void AllReduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    StartAllReduce(buffer, op, scale).Wait();
  }
  void ReduceScatter(
      Buffer input, Buffer output, ReduceOp op = ReduceOp::kSum, Scale scale = {},
      const Counts& shares = {}) {
    StartReduceScatter(input, output, op, scale, shares).Wait();
  }
  void Reduce(
      Buffer input, Buffer output, int root, ReduceOp op = ReduceOp::kSum, Scale scale = {}) {
    StartReduce(input, output, root, op, scale).Wait();
  }
  void Broadcast(Buffer buffer, int root) { StartBroadcast(buffer, root).Wait(); }
  void AllGather(Buffer input, Buffer output, const Counts& receive_counts = {}) {
    StartAllGather(input, output, receive_counts).Wait();
  }
  void AllToAll(
      Buffer input, Buffer output, const Counts& send_counts = {},
      const Counts& receive_counts = {}) {
    StartAllToAll(input, output, send_counts, receive_counts).Wait();
  }
  void Gather(Buffer input, Buffer output, int root, const Counts& receive_counts = {}) {
    StartGather(input, output, root, receive_counts).Wait();
  }
  void Scatter(Buffer input, Buffer output, int root, const Counts& send_counts = {}) {
    StartScatter(input, output, root, send_counts).Wait();
  }
  void Barrier() { StartBarrier().Wait(); }
  void Send(Buffer buffer, int peer) { StartSend(buffer, peer).Wait(); }
  void Receive(Buffer buffer, int peer) { StartReceive(buffer, peer).Wait(); }

  /// Collective: what every rank calls with, by rank; the receive counts of an AllGather.
  ///
  ///   rank 0: 2   rank 1: 7   AllGatherCounts  ->  both {2, 7}
  Counts AllGatherCounts(uint64_t mine) {
    Counts all(static_cast<size_t>(size()));
    AllGather(Buffer(&mine, 1), Buffer(all.data(), all.size()));
    return all;
  }

  /// Collective: `splits[r]` elements will go to rank r; returns how many come from each rank, the
  /// receive counts of an AllToAll with these send counts.
  ///
  ///   rank 0: {1, 2}   rank 1: {0, 2}   ExchangeSplits  ->  {1, 0} and {2, 2}
  Counts ExchangeSplits(const Counts& splits) {
    CheckSize("exchange_splits", "the splits", splits);
    Counts sent = splits, received(splits.size());
    AllToAll(Buffer(sent.data(), sent.size()), Buffer(received.data(), received.size()));
    return received;
  }

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

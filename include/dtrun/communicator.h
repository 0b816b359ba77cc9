#ifndef DTRUN_COMMUNICATOR_H_
#define DTRUN_COMMUNICATOR_H_

#include <dtrun/c.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <memory>
#include <string>

namespace dtrun {

/// One started operation. It owns the buffers it was given until it is done. Not thread-safe.
/// Destroying an unfinished Work lets the operation go on without a handle.
class Work {
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

/// A fixed set of ranks that exchange data. Collectives are started by every rank, in the same
/// order. Not thread-safe: one thread at a time per Communicator; `Duplicate()` gives another one.
/// After kPeerLost or kTimeout it is unusable; destroy it.
class Communicator {
 public:
  /// Takes ownership, unless `borrowed` (the world belongs to its Context).
  enum class Ownership { kOwned, kBorrowed };
  Communicator(dtrun_communicator* handle, Ownership ownership)
      : handle_(handle), owned_(ownership == Ownership::kOwned ? handle : nullptr) {}

  int rank() const { return dtrun_communicator_rank(handle_); }
  int size() const { return dtrun_communicator_size(handle_); }
  /// Name of the backend that moves the data: "self", "shm" or "mpi".
  std::string backend() const { return dtrun_communicator_backend(handle_); }

  /// Collective: the same ranks, with operations of its own that never interleave with this one's.
  Communicator Duplicate() {
    dtrun_communicator* duplicate = nullptr;
    detail::Check(dtrun_communicator_duplicate(handle_, &duplicate));
    return Communicator(duplicate, Ownership::kOwned);
  }

  /// Collective: memory that this communicator's collectives reduce in place, without a copy, where
  /// the backend can. Ranks may ask for different sizes. Each rank should write its own block first
  /// (pages are placed by first touch).
  Memory Allocate(uint64_t bytes) {
    dtrun_memory* memory = nullptr;
    detail::Check(dtrun_communicator_allocate(handle_, bytes, &memory));
    return Memory(memory);
  }

  /// Starts replacing `buffer` on every rank by the element-wise `op` over all ranks. The buffer
  /// belongs to the returned Work until it is done. All ranks pass the same count and dtype; every
  /// rank gets the same bits.
  ///
  ///   rank 0: {1, 2}   rank 1: {3, 5}   StartAllReduce(kSum)  ->  both {4, 7}
  ///
  /// 16-bit floats accumulate in f32 and are rounded once; the average of integers truncates toward
  /// zero; on bools sum and max are "or", product and min "and".
  Work StartAllReduce(Buffer buffer, ReduceOp op = ReduceOp::kSum) {
    dtrun_work* work = nullptr;
    detail::Check(
        dtrun_start_all_reduce(handle_, detail::ToC(buffer), static_cast<int32_t>(op), &work));
    return Work(work);
  }

  /// Starts replacing `buffer` on every rank by that of rank `root`.
  Work StartBroadcast(Buffer buffer, int root) {
    dtrun_work* work = nullptr;
    detail::Check(dtrun_start_broadcast(handle_, detail::ToC(buffer), root, &work));
    return Work(work);
  }

  /// Starts filling `output` (input.count * size() elements) with the inputs of all ranks in rank
  /// order.
  Work StartAllGather(Buffer input, Buffer output) {
    dtrun_work* work = nullptr;
    detail::Check(dtrun_start_all_gather(handle_, detail::ToC(input), detail::ToC(output), &work));
    return Work(work);
  }

  Work StartBarrier() {
    dtrun_work* work = nullptr;
    detail::Check(dtrun_start_barrier(handle_, &work));
    return Work(work);
  }

  /// The same operations, started and waited for.
  void AllReduce(Buffer buffer, ReduceOp op = ReduceOp::kSum) { StartAllReduce(buffer, op).Wait(); }
  void Broadcast(Buffer buffer, int root) { StartBroadcast(buffer, root).Wait(); }
  void AllGather(Buffer input, Buffer output) { StartAllGather(input, output).Wait(); }
  void Barrier() { StartBarrier().Wait(); }

  dtrun_communicator* handle() const { return handle_; }

 private:
  dtrun_communicator* handle_;
  std::unique_ptr<
      dtrun_communicator, detail::Destroyer<dtrun_communicator, dtrun_communicator_destroy>>
      owned_;
};

}  // namespace dtrun

#endif

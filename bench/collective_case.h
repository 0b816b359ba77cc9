#ifndef DTRUN_BENCH_COLLECTIVE_CASE_H_
#define DTRUN_BENCH_COLLECTIVE_CASE_H_

#include <dtrun/communicator.h>
#include <mpi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::bench {

enum class Op {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kReduce,
  kGather,
  kScatter,
  kSendReceive,  ///< every rank sends to the next one and receives from the one before it
};

enum class Placement { kMapped, kPrivate };

/// "all_reduce" and so on; nothing for a name that is none.
const char* NameOf(Op op);
const char* NameOf(Placement placement);
std::optional<Op> OpOf(const std::string& name);
std::vector<std::string> OpNames();
/// Of the names that NameOf(DType) gives, but bool.
std::optional<DType> DTypeOf(const std::string& name);
std::vector<std::string> DTypeNames();

/// Bytes on the busiest link per byte of the largest buffer, as nccl-tests counts them.
double BusFactor(Op op, int size);

/// One collective beside raw MPI's call, each on buffers of its own. Sums, and messages from and to
/// rank 0. Collective, but for the accessors; one thread.
class CollectiveCase {
 public:
  /// `bytes` is the largest buffer of one rank, rounded to what all ranks can share.
  CollectiveCase(Communicator& comm, Op op, DType dtype, Placement placement, uint64_t bytes);

  uint64_t bytes() const { return largest_ * SizeOf(dtype_); }
  /// Elements of the largest buffer.
  uint64_t count() const { return largest_; }
  /// MPI knows the type, or need not know it to move it.
  bool has_peer() const { return peer_type_ != MPI_DATATYPE_NULL; }

  void Ours();
  void Peers();

  /// Elements that differ from what they have to be, over all ranks.
  uint64_t Wrong();

 private:
  void* Take(uint64_t count, Placement placement);
  unsigned Input(int rank, uint64_t i) const;
  unsigned Expected(uint64_t i) const;
  uint64_t WrongHere();

  Communicator& comm_;
  Op op_;
  DType dtype_;
  MPI_Datatype peer_type_;
  int rank_, size_;
  uint64_t largest_, part_;              // elements; a rank's part where parts are exchanged
  uint64_t input_count_, output_count_;  // on this rank
  bool in_place_;
  std::vector<Memory> mapped_;
  std::vector<std::vector<unsigned char>> private_;
  void *input_, *output_, *peer_input_, *peer_output_;
};

}  // namespace dtrun::bench

#endif

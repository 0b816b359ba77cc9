#ifndef DTRUN_BENCH_MEASURE_H_
#define DTRUN_BENCH_MEASURE_H_

#include <dtrun/communicator.h>
#include <dtrun/dtrun.h>
#include <mpi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/cpu_watch.h"

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

double Median(std::vector<double> values);

/// Whether a side is called once before its part of a round is timed: when others have had the CPU
/// in between, such as a peer in a process of its own, its caches are cold. Calls of a second and
/// more are timed as they are.
enum class Warmth { kAsItIs, kWarm };

/// Calls of several sides in turn, a batch of each per round; a batch is long enough for the clock.
/// The time of a round is the slowest rank's, the result the median of each side in microseconds,
/// over `least_rounds` or more. Collective.
std::vector<double> MeasureInTurn(
    Communicator& comm, const std::vector<std::function<void()>>& sides, int least_rounds,
    Warmth warmth = Warmth::kAsItIs);

struct Times {
  double ours_us = 0;
  double peers_us = 0;  ///< 0 without a peer
};

/// MeasureInTurn of both sides. Collective.
Times Measure(Communicator& comm, CollectiveCase& measured, int least_rounds);

/// What memory allows, in GB/s.
struct MemorySpeed {
  double copy_gbps = 0;  ///< bytes that rank 0 copies while the others are idle
  /// Bytes that all ranks read and write at the same time, each adding two arrays into both and
  /// waiting for nobody: what an all-reduce of two mapped buffers does at the least.
  double in_place_gbps = 0;
};

/// Collective.
MemorySpeed MeasureMemorySpeed(Communicator& comm);

/// The share of the hosts' CPU time that went to processes that are not of this job. Collective.
double ForeignShare(Context& job, const CpuWatch& watch);

/// What the MPI beside ours runs with.
struct PeerSettings {
  std::string version;                 ///< "Open MPI v4.1.4"
  bool yields_when_idle = false;       ///< as this process has it, however it was set
  std::vector<std::string> variables;  ///< "OMPI_MCA_coll_tuned_use_dynamic_rules=1"
};

PeerSettings ReadPeerSettings();

/// More ranks of this job share the host than it has CPUs.
bool Oversubscribed(const Context& job);

}  // namespace dtrun::bench

#endif  // DTRUN_BENCH_MEASURE_H_

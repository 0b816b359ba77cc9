#ifndef DTRUN_BENCH_MEASURE_H_
#define DTRUN_BENCH_MEASURE_H_

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/types.h>
#include <mpi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/benchmark.h"

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
  kSendReceive,  ///< every rank sends to the next rank and receives from the previous rank
};

enum class Placement { kMapped, kPrivate };

/// Names such as "all_reduce". OpOf returns nullopt for an unknown name.
const char* NameOf(Op op);
const char* NameOf(Placement placement);
std::optional<Op> OpOf(const std::string& name);
std::vector<std::string> OpNames();
/// The names are those of dtrun::NameOf(DType), without bool.
std::optional<DType> DTypeOf(const std::string& name);
std::vector<std::string> DTypeNames();

/// Bytes on the busiest link per byte of the largest buffer, as nccl-tests counts them.
double BusFactor(Op op, int size);

/// One collective of dtrun, and the same call of raw MPI. Each has separate buffers. Reductions are
/// sums, and the root is rank 0. All methods but the accessors are collective; one thread.
class CollectiveCase {
 public:
  /// `bytes` is the size of the largest buffer of one rank, rounded to equal parts for all ranks.
  CollectiveCase(Communicator& comm, Op op, DType dtype, Placement placement, uint64_t bytes);

  uint64_t bytes() const { return largest_ * SizeOf(dtype_); }
  /// Elements of the largest buffer.
  uint64_t count() const { return largest_; }
  /// Whether MPI has the type, or only has to move its bytes.
  bool has_peer() const { return peer_type_ != MPI_DATATYPE_NULL; }

  void Ours();
  void Peers();

  /// Runs the collective on known inputs. Returns the number of wrong elements over all ranks.
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
  uint64_t largest_, part_;              // elements; part_: of one rank, if ranks exchange parts
  uint64_t input_count_, output_count_;  // on this rank
  bool in_place_;
  std::vector<Memory> mapped_;
  std::vector<std::vector<unsigned char>> private_;
  void *input_, *output_, *peer_input_, *peer_output_;
};

double Median(std::vector<double> values);

/// Whether MeasureInTurn calls a side once before each timed part of a round. If other processes,
/// such as a peer, have had the CPU in between, the side's caches are cold. Sides with calls of one
/// second or more have no such call.
enum class Warmth { kAsItIs, kWarm };

/// Times several sides alternately, with a batch of calls of each side per round. A batch is long
/// enough for the clock. The time of a round is that of the slowest rank. Returns the median of
/// each side in microseconds, over at least `least_rounds` rounds. Collective.
std::vector<double> MeasureInTurn(
    Communicator& comm, const std::vector<std::function<void()>>& sides, int least_rounds,
    Warmth warmth = Warmth::kAsItIs);

struct Times {
  double ours_us = 0;
  double peers_us = 0;  ///< 0 without a peer
};

/// MeasureInTurn of dtrun and MPI. Collective.
Times Measure(Communicator& comm, CollectiveCase& measured, int least_rounds);

/// The speed of memory, in GB/s.
struct MemorySpeed {
  double copy_gbps = 0;  ///< bytes that rank 0 copies while the other ranks are idle
  /// Bytes that all ranks read and write at the same time. Each rank adds two arrays and writes the
  /// sum to both, without waiting for other ranks. An all-reduce of two mapped buffers does at
  /// least this work.
  double in_place_gbps = 0;
};

/// Collective.
MemorySpeed MeasureMemorySpeed(Communicator& comm);

/// The share of the hosts' CPU time that went to processes outside this job. Collective.
double ForeignShare(Context& job, const CpuWatch& watch);

/// The settings of the MPI that dtrun is compared with.
struct PeerSettings {
  std::string version;                 ///< "Open MPI v4.1.4"
  bool yields_when_idle = false;       ///< the value in this process, from any source
  std::vector<std::string> variables;  ///< "OMPI_MCA_coll_tuned_use_dynamic_rules=1"
};

PeerSettings ReadPeerSettings();

/// Whether more ranks of this job share the host than the host has CPUs.
bool Oversubscribed(const Context& job);

}  // namespace dtrun::bench

#endif  // DTRUN_BENCH_MEASURE_H_

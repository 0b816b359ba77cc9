#ifndef DTRUN_OPS_CUDA_CALL_LOG_H_
#define DTRUN_OPS_CUDA_CALL_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/collective.h"
#include "ops/cuda/protocol.h"
#include "ops/members.h"
#include "ops/segment.h"

namespace dtrun::ops::cuda {

/// What the ranks of a host have enqueued last, in memory that all of them map, for the texts of
/// errors. Each writes its own and reads those of the others when something has failed.
class CallLog {
 public:
  static constexpr uint64_t kKept = 128;  // calls of a rank

  /// `segments`: one of Bytes() for each rank.
  CallLog(std::vector<std::shared_ptr<Segment>> segments, int rank);
  static uint64_t Bytes();

  /// This rank's call `number`, counted from 1.
  void Write(uint32_t number, const Collective& collective);
  /// Whether this rank has given back its memory `region`, which the others may then unmap.
  void MarkFreed(uint32_t region, bool freed);
  bool IsFreed(int rank, uint32_t region) const;

  /// In which way the calls with these numbers, by rank, disagree: "rank 0 called ...; rank 1
  /// called
  /// ...".
  std::string Disagreement(const uint32_t* numbers, const Members& members) const;
  bool IsMessage(int rank, uint32_t number) const;
  /// "all_reduce (f32, 4 elements, sum)", of one rank.
  std::string Describe(int rank, uint32_t number) const;

 private:
  struct Entry;
  struct Page;
  Page& page(int rank) const;
  const Entry* Find(int rank, uint32_t number) const;

  std::vector<std::shared_ptr<Segment>> segments_;
  int rank_;
};

}  // namespace dtrun::ops::cuda

#endif

#ifndef DTRUN_BENCH_TABLE_H_
#define DTRUN_BENCH_TABLE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/measure.h"

namespace dtrun::bench {

/// One measured size.
struct Row {
  Op op;
  DType dtype;
  Placement placement;
  int ranks;
  uint64_t bytes, count, wrong;
  Times times;
  MemorySpeed memory;
  std::string isa;  ///< what sums are computed with

  double algbw_gbps() const { return static_cast<double>(bytes) / times.ours_us / 1e3; }
};

/// For people: the columns of nccl-tests, with MPI beside them.
void PrintHeader(
    Op op, int ranks, const std::string& backend, const std::string& isa, const MemorySpeed& memory,
    const PeerSettings& peer);
void PrintRow(const Row& row);

/// For programs: the names of docs/benchmarks.md. Without a peer its fields are null.
nlohmann::json ToJson(const std::vector<Row>& rows);

}  // namespace dtrun::bench

#endif

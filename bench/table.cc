#include "bench/table.h"

#include <cstdio>

namespace dtrun::bench {
namespace {

bool Combines(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
}

bool HasRoot(Op op) {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter;
}

std::string Fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

}  // namespace

void PrintHeader(
    Op op, int ranks, const std::string& backend, const std::string& isa, const MemorySpeed& memory,
    const PeerSettings& peer) {
  std::printf(
      "# %s, %d ranks, backend %s, sums by %s; one core copies %.1f GB/s, all ranks together read "
      "and write %.1f GB/s\n",
      NameOf(op), ranks, backend.c_str(), isa.c_str(), memory.copy_gbps, memory.in_place_gbps);
  std::printf(
      "# beside it %s, mpi_yield_when_idle %d", peer.version.c_str(),
      peer.yields_when_idle ? 1 : 0);
  for (const std::string& variable : peer.variables) std::printf(", %s", variable.c_str());
  std::printf(
      "\n#%11s %12s %5s %6s %5s %8s %10s %10s %7s %8s %8s %7s\n", "size", "count", "type", "redop",
      "root", "memory", "time", "mpi time", "ratio", "algbw", "busbw", "#wrong");
  std::printf(
      "#%11s %12s %5s %6s %5s %8s %10s %10s %7s %8s %8s %7s\n", "(B)", "(elements)", "", "", "", "",
      "(us)", "(us)", "", "(GB/s)", "(GB/s)", "");
}

void PrintRow(const Row& row) {
  const bool peer = row.times.peers_us > 0;
  std::printf(
      "%12llu %12llu %5s %6s %5s %8s %10.2f %10s %7s %8.2f %8.2f %7llu\n",
      static_cast<unsigned long long>(row.bytes), static_cast<unsigned long long>(row.count),
      dtrun::NameOf(row.dtype), Combines(row.op) ? "sum" : "-", HasRoot(row.op) ? "0" : "-",
      NameOf(row.placement), row.times.ours_us, peer ? Fixed(row.times.peers_us).c_str() : "-",
      peer ? Fixed(row.times.peers_us / row.times.ours_us).c_str() : "-", row.algbw_gbps(),
      row.algbw_gbps() * BusFactor(row.op, row.ranks), static_cast<unsigned long long>(row.wrong));
  std::fflush(stdout);
}

nlohmann::json ToJson(const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json entry = {
        {"op", NameOf(row.op)},
        {"dtype", dtrun::NameOf(row.dtype)},
        {"ranks", row.ranks},
        {"bytes", row.bytes},
        {"memory", NameOf(row.placement)},
        {"isa", row.isa},
        {"time_us", row.times.ours_us},
        {"mpi_time_us", nullptr},
        {"ratio", nullptr},
        {"algbw_gbps", row.algbw_gbps()},
        {"memcpy_gbps", row.memory.copy_gbps},
        {"in_place_gbps", row.memory.in_place_gbps},
        {"wrong", row.wrong},
    };
    if (row.times.peers_us > 0) {
      entry["mpi_time_us"] = row.times.peers_us;
      entry["ratio"] = row.times.peers_us / row.times.ours_us;
    }
    all.push_back(entry);
  }
  return all;
}

}  // namespace dtrun::bench

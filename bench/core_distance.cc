#include "bench/core_distance.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>

#include "bench/measure.h"

namespace dtrun::bench {
namespace {

constexpr int kTrips = 5000, kSeries = 3;

using Counter = std::atomic<uint64_t>;

// Two ranks raise a counter by turns; the fastest series, since an interrupt only adds.
double LeastNs(Counter& counter, uint64_t rank) {
  double least = 1e9;
  uint64_t turn = rank;
  for (int series = 0; series < kSeries; ++series) {
    const auto start = std::chrono::steady_clock::now();
    for (int trip = 0; trip < kTrips; ++trip, turn += 2) {
      while (counter.load(std::memory_order_acquire) != turn) continue;
      counter.store(turn + 1, std::memory_order_release);
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    least = std::min(least, time.count() / (2 * kTrips));
  }
  return least;
}

// 0 on the other ranks of the host. Collective.
double BetweenTheFirstTwo(MPI_Comm host) {
  int rank = 0;
  MPI_Comm_rank(host, &rank);
  void* mine = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  MPI_Win_allocate_shared(rank == 0 ? sizeof(Counter) : 0, 1, MPI_INFO_NULL, host, &mine, &window);
  MPI_Aint bytes = 0;
  int unit = 0;
  void* shared = nullptr;
  MPI_Win_shared_query(window, 0, &bytes, &unit, &shared);
  if (rank == 0) new (shared) Counter(0);
  MPI_Barrier(host);
  const double ns =
      rank < 2 ? LeastNs(*static_cast<Counter*>(shared), static_cast<uint64_t>(rank)) : 0;
  MPI_Win_free(&window);
  return ns;
}

}  // namespace

double CacheLineNs(Context& job) {
  int mpi = 0;
  MPI_Initialized(&mpi);
  if (mpi == 0) return 0;
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int ranks = 0;
  MPI_Comm_size(host, &ranks);
  double ns = ranks >= 2 && !Oversubscribed(job) ? BetweenTheFirstTwo(host) : 0;
  MPI_Comm_free(&host);
  job.world().Broadcast(Buffer(&ns, 1), 0);
  return ns;
}

}  // namespace dtrun::bench

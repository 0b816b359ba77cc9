#ifndef DTRUN_OPS_MPI_MPI_BOOTSTRAP_H_
#define DTRUN_OPS_MPI_MPI_BOOTSTRAP_H_

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ops/bootstrap.h"

namespace dtrun::ops::mpi {

/// All ranks of `comm`, where messages with these tags are the bootstrap's alone. A wait of more
/// than `timeout` throws Error kTimeout, which names who has not come.
class MpiBootstrap : public Bootstrap {
 public:
  static constexpr int kLengthTag = 1, kBytesTag = 2;

  MpiBootstrap(MPI_Comm comm, int rank, int size, base::Duration timeout)
      : comm_(comm), rank_(rank), size_(size), timeout_(timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> AllGather(const std::string& bytes) override;
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override;

 private:
  void Exchange(int tag, const std::string& mine, std::vector<std::string>& all);

  MPI_Comm comm_;
  int rank_, size_;
  base::Duration timeout_;
};

}  // namespace dtrun::ops::mpi

#endif

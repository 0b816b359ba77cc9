// A gather is two rounds of messages from everybody to everybody: the lengths, then the bytes.

#include "ops/mpi/mpi_bootstrap.h"

#include <chrono>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/mpi/mpi_calls.h"
#include "ops/segment_exchange.h"

namespace dtrun::ops::mpi {
namespace {

// The messages of one round. Given up, it is left to MPI with the memory that it uses.
struct Round {
  std::string mine;
  std::vector<std::string> all;
  std::vector<MPI_Request> receives, sends;  // by rank

  bool Done() {
    int received = 0, sent = 0;
    Check(
        MPI_Testall(Int(receives.size()), receives.data(), &received, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    Check(MPI_Testall(Int(sends.size()), sends.data(), &sent, MPI_STATUSES_IGNORE), "MPI_Testall");
    return received != 0 && sent != 0;
  }

  std::vector<int> Missing() {
    std::vector<int> missing;
    for (size_t r = 0; r < receives.size(); ++r) {
      int received = 0;
      MPI_Request_get_status(receives[r], &received, MPI_STATUS_IGNORE);
      if (received == 0) missing.push_back(static_cast<int>(r));
    }
    return missing;
  }
};

}  // namespace

void MpiBootstrap::Exchange(int tag, const std::string& mine, std::vector<std::string>& all) {
  auto round = std::make_unique<Round>();
  round->mine = mine;
  round->all = std::move(all);
  round->all[static_cast<size_t>(rank_)] = mine;
  round->receives.assign(static_cast<size_t>(size_), MPI_REQUEST_NULL);
  round->sends = round->receives;
  for (int i = 1; i < size_; ++i) {
    const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
    std::string& bytes = round->all[static_cast<size_t>(from)];
    Check(
        MPI_Irecv(
            bytes.data(), Int(bytes.size()), MPI_BYTE, from, tag, comm_,
            &round->receives[static_cast<size_t>(from)]),
        "MPI_Irecv");
    Check(
        MPI_Isend(
            round->mine.data(), Int(round->mine.size()), MPI_BYTE, to, tag, comm_,
            &round->sends[static_cast<size_t>(to)]),
        "MPI_Isend");
  }
  if (!WaitUntil(timeout_, [&round] { return round->Done(); })) {
    const std::vector<int> missing = round.release()->Missing();
    throw Error(
        ErrorCode::kTimeout,
        base::Text(
            "waited too long for ", missing.empty() ? "the other ranks" : base::RankList(missing),
            " in Init"));
  }
  all = std::move(round->all);
}

std::vector<std::string> MpiBootstrap::AllGather(const std::string& bytes) {
  uint64_t length = bytes.size();
  std::vector<std::string> lengths(static_cast<size_t>(size_), std::string(sizeof length, '\0'));
  Exchange(kLengthTag, std::string(reinterpret_cast<const char*>(&length), sizeof length), lengths);
  std::vector<std::string> all;
  for (const std::string& text : lengths) {
    std::memcpy(&length, text.data(), sizeof length);
    all.emplace_back(length, '\0');
  }
  Exchange(kBytesTag, bytes, all);
  return all;
}

std::unique_ptr<SegmentExchange> MpiBootstrap::ConnectSegmentExchange(Bootstrap& ranks) {
  return ConnectSocketExchange(ranks, std::chrono::duration_cast<std::chrono::seconds>(timeout_));
}

}  // namespace dtrun::ops::mpi

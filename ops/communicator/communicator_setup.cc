#include "ops/communicator/communicator_setup.h"

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"

namespace dtrun::ops {

std::unique_ptr<SegmentExchange> CommunicatorBootstrap::ConnectSegmentExchange(Bootstrap&) {
  throw Error(
      ErrorCode::kUnavailable, "these ranks do not share a host, so they cannot share memory");
}

}  // namespace dtrun::ops

namespace dtrun::ops::cuda {

std::string FirstObjection(Communicator& host, const std::function<std::string()>& ask) {
  std::string mine;
  try {
    mine = ask();
  } catch (const Error& error) {
    mine = error.what();
  }
  const std::vector<std::string> objections = AllGatherBytes(host, mine);
  for (size_t rank = 0; rank < objections.size(); ++rank) {
    if (objections[rank].empty()) continue;
    return base::Text(host.members().List({static_cast<int>(rank)}), ": ", objections[rank]);
  }
  return "";
}

void AgreeOn(Communicator& host, const std::function<void()>& step) {
  const std::string objection = FirstObjection(host, [&]() -> std::string {
    step();
    return "";
  });
  if (!objection.empty()) throw Error(ErrorCode::kUnavailable, objection);
}

namespace {

void Compare(Communicator& host, const Collective& collective) {
  const auto size = static_cast<size_t>(host.size());
  base::Call mine = CallOf(collective, host.rank());
  std::vector<base::Call> calls(size);
  host.AllGather(
      Buffer(&mine, sizeof mine, DType::kU8), Buffer(calls.data(), size * sizeof mine, DType::kU8));
  // If any rank has counts by rank, all ranks gather the counts.
  uint8_t tables = 0;
  for (const base::Call& call : calls) tables |= call.tables;
  Counts sends(size * size), receives(size * size);
  const auto gather = [&](uint8_t which, Counts counts, Counts& all) {
    if ((tables & which) == 0) return;
    counts.resize(size);
    host.AllGather(Buffer(counts.data(), size), Buffer(all.data(), all.size()));
  };
  gather(base::Call::kSends, collective.send_counts, sends);
  gather(base::Call::kReceives, collective.receive_counts, receives);
  std::vector<Called> called(size);
  for (size_t r = 0; r < size; ++r) {
    called[r].call = &calls[r];
    if ((calls[r].tables & base::Call::kSends) != 0) called[r].sends = &sends[r * size];
    if ((calls[r].tables & base::Call::kReceives) != 0) called[r].receives = &receives[r * size];
  }
  const Calls all(called.data(), host.size());
  if (!all.Agree()) {
    throw Error(
        ErrorCode::kMismatch,
        base::Text(
            "the ranks disagree on a collective on GPUs: ", all.Disagreement(host.members())));
  }
}

}  // namespace

void AgreeOnCall(Communicator& host, const Collective& collective) {
  try {
    Compare(host, collective);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kMismatch) throw;
    throw Error(
        error.code(), base::Text(
                          Describe(collective),
                          " on a GPU failed while the ranks compared their calls: ", error.what()));
  }
}

}  // namespace dtrun::ops::cuda

#include "tests/support/reference_communicator.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/segment.h"
#include "ops/reduce/reduce.h"

namespace dtrun::testing {
namespace {

using ops::Call;
using ops::Called;
using ops::Calls;
using ops::Collective;
using ops::CollectiveKind;

using Bytes = std::vector<char>;

// One collective: the calls of all ranks and the result.
struct Round {
  explicit Round(size_t size) : called(size), calls(size), here(size) {}
  std::vector<Collective> called;
  std::vector<Call> calls;
  std::vector<bool> here;
  size_t arrived = 0, left = 0;
  bool done = false;
  std::string error;
};

struct Message {
  Buffer from, to;
  bool sent = false, awaited = false, done = false;
};

// The state that all ranks of a communicator share.
struct Table {
  std::mutex mutex;
  std::vector<std::shared_ptr<ops::Segment>> doorbells;
  std::map<uint64_t, Round> rounds;                                      // by sequence
  std::map<std::pair<std::pair<int, int>, uint64_t>, Message> messages;  // by ranks and sequence

  void Ring() {
    for (const auto& segment : doorbells) reinterpret_cast<ops::Doorbell*>(segment->data())->Ring();
  }
};

class Oracle {
 public:
  Oracle(Round& round, const Calls& calls) : round_(round), calls_(calls) {}

  void Finish() {
    const auto size = static_cast<int>(round_.called.size());
    std::vector<Bytes> outputs;
    for (int r = 0; r < size; ++r) outputs.push_back(OutputOf(r));
    // Writes outputs only after all are computed, because an output may be an input.
    for (int r = 0; r < size; ++r) {
      const auto& output = outputs[static_cast<size_t>(r)];
      if (!output.empty()) std::memcpy(of(r).output.data, output.data(), output.size());
    }
  }

 private:
  const Collective& of(int rank) const { return round_.called[static_cast<size_t>(rank)]; }

  Bytes OutputOf(int rank) const {
    const Collective& collective = of(rank);
    const bool root_alone =
        collective.kind == CollectiveKind::kReduce || collective.kind == CollectiveKind::kGather;
    const bool root_apart = collective.kind == CollectiveKind::kBroadcast;
    if (collective.kind == CollectiveKind::kBarrier) return {};
    if (root_alone && rank != collective.root) return {};
    if (root_apart && rank == collective.root) return {};
    return ops::Combines(collective.kind) ? Combined(rank) : Moved(rank);
  }

  Bytes Combined(int rank) const {
    const Collective& collective = of(rank);
    const uint64_t element = SizeOf(collective.input.dtype);
    const ops::Range part = collective.kind == CollectiveKind::kReduceScatter
                                ? calls_.Share(rank)
                                : ops::Range{0, collective.input.count};
    std::vector<const void*> inputs;
    for (const Collective& each : round_.called) {
      inputs.push_back(static_cast<const char*>(each.input.data) + part.begin * element);
    }
    Bytes result(part.count * element);
    void* output = result.data();
    ops::Reduce(
        inputs.data(), static_cast<int>(inputs.size()), &output, 1, part.count,
        collective.input.dtype,
        {.op = collective.op, .divisor = collective.divisor, .scale = collective.scale});
    return result;
  }

  Bytes Moved(int rank) const {
    const uint64_t element = SizeOf(of(rank).output.dtype);
    Bytes result(of(rank).output.count * element);
    for (int s = 0; s < static_cast<int>(round_.called.size()); ++s) {
      const ops::Range from = calls_.InInput(s, rank), to = calls_.InOutput(s, rank);
      if (from.count == 0) continue;
      std::memcpy(
          result.data() + to.begin * element,
          static_cast<const char*>(of(s).input.data) + from.begin * element, from.count * element);
    }
    return result;
  }

  Round& round_;
  const Calls& calls_;
};

class CollectiveOperation : public ops::Operation {
 public:
  CollectiveOperation(
      std::shared_ptr<Table> table, std::shared_ptr<const ops::Members> members, uint64_t sequence,
      Collective collective, int rank, int size)
      : Operation(std::move(members), sequence, ops::CallOf(collective, rank)),
        table_(std::move(table)),
        collective_(std::move(collective)),
        rank_(rank),
        size_(static_cast<size_t>(size)) {}

  Progress Advance() override {
    std::lock_guard lock(table_->mutex);
    Round& round = table_->rounds.try_emplace(sequence(), size_).first->second;
    if (!posted_) Post(round);
    if (!round.done) return Progress::kNone;
    const std::string error = round.error;
    if (++round.left == size_) table_->rounds.erase(sequence());
    if (!error.empty()) throw Error(ErrorCode::kMismatch, error);
    return Progress::kDone;
  }

  std::vector<int> Missing() const override {
    std::lock_guard lock(table_->mutex);
    std::vector<int> missing;
    const auto found = table_->rounds.find(sequence());
    if (found == table_->rounds.end()) return missing;
    for (size_t r = 0; r < size_; ++r) {
      if (!found->second.here[r]) missing.push_back(static_cast<int>(r));
    }
    return missing;
  }

 private:
  void Post(Round& round) {
    const auto rank = static_cast<size_t>(rank_);
    posted_ = true;
    round.called[rank] = collective_;
    round.calls[rank] = call();
    round.here[rank] = true;
    if (++round.arrived < size_) return;
    std::vector<Called> called(size_);
    for (size_t r = 0; r < size_; ++r) {
      const auto& [sends, receives] =
          std::tie(round.called[r].send_counts, round.called[r].receive_counts);
      called[r] = {
          &round.calls[r], sends.empty() ? nullptr : sends.data(),
          receives.empty() ? nullptr : receives.data()};
    }
    const Calls calls(called.data(), static_cast<int>(size_));
    if (calls.Agree()) {
      Oracle(round, calls).Finish();
    } else {
      round.error = base::Text(
          "the ranks disagree on collective #", sequence(), ": ", calls.Disagreement(members()));
    }
    round.done = true;
    table_->Ring();
  }

  std::shared_ptr<Table> table_;
  Collective collective_;
  int rank_;
  size_t size_;
  bool posted_ = false;
};

class MessageOperation : public ops::Operation {
 public:
  MessageOperation(
      std::shared_ptr<Table> table, std::shared_ptr<const ops::Members> members, uint64_t sequence,
      const Collective& collective, int rank)
      : Operation(std::move(members), sequence, ops::CallOf(collective, rank)),
        table_(std::move(table)),
        collective_(collective),
        sends_(collective.kind == CollectiveKind::kSend),
        key_(
            sends_ ? std::pair(rank, collective.root) : std::pair(collective.root, rank),
            sequence) {}

  Progress Advance() override {
    std::lock_guard lock(table_->mutex);
    Message& message = table_->messages[key_];
    if (message.done) {  // the other rank has copied the data
      table_->messages.erase(key_);
      return Progress::kDone;
    }
    (sends_ ? message.sent : message.awaited) = true;
    (sends_ ? message.from : message.to) = sends_ ? collective_.input : collective_.output;
    if (!message.sent || !message.awaited) return Progress::kNone;
    if (message.from.bytes() != message.to.bytes()) {
      throw Error(ErrorCode::kMismatch, "the two sides of a message disagree");
    }
    if (message.to.count > 0) {
      std::memcpy(message.to.data, message.from.data, message.to.bytes());
    }
    message.done = true;
    table_->Ring();
    return Progress::kDone;
  }
  std::vector<int> Missing() const override { return {collective_.root}; }

 private:
  std::shared_ptr<Table> table_;
  Collective collective_;
  bool sends_;
  std::pair<std::pair<int, int>, uint64_t> key_;
};

// Rank 0 makes the table and sends its address. All ranks are threads of one process.
std::shared_ptr<Table> ShareTable(ops::Bootstrap& bootstrap, const ops::Engine& engine) {
  auto mine = bootstrap.rank() == 0 ? std::make_shared<Table>() : nullptr;
  const auto address = reinterpret_cast<uintptr_t>(&mine);
  const std::string all = bootstrap.AllGather(std::to_string(address))[0];
  auto table = *reinterpret_cast<std::shared_ptr<Table>*>(std::stoull(all));
  {
    std::lock_guard lock(table->mutex);
    table->doorbells.push_back(engine.doorbell_segment());
  }
  bootstrap.AllGather("");  // rank 0 keeps `mine` until all ranks have copied it
  return table;
}

class ReferenceCommunicator : public ops::Communicator {
 public:
  ReferenceCommunicator(ops::Bootstrap& bootstrap, ops::Engine& engine, ops::Members members)
      : Communicator(std::move(members)),
        engine_(engine),
        table_(ShareTable(bootstrap, engine)),
        rank_(bootstrap.rank()),
        size_(bootstrap.size()),
        sends_(static_cast<size_t>(size_)),
        receives_(static_cast<size_t>(size_)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* backend() const override { return "reference"; }
  std::unique_ptr<ops::Memory> Allocate(uint64_t bytes) override {
    Barrier();
    return ops::AllocatePrivate(bytes);
  }
  std::unique_ptr<Communicator> Create(
      ops::Bootstrap& bootstrap, const std::vector<int>&, ops::Members members) override {
    return std::make_unique<ReferenceCommunicator>(bootstrap, engine_, std::move(members));
  }

 protected:
  ops::Work StartChecked(Collective collective) override {
    const auto peer = static_cast<size_t>(collective.root);
    if (collective.kind == CollectiveKind::kSend || collective.kind == CollectiveKind::kReceive) {
      auto& counts = collective.kind == CollectiveKind::kSend ? sends_ : receives_;
      return engine_.Start(std::make_unique<MessageOperation>(
          table_, shared_members(), ++counts[peer], collective, rank_));
    }
    return engine_.Start(std::make_unique<CollectiveOperation>(
        table_, shared_members(), ++collectives_, std::move(collective), rank_, size_));
  }

 private:
  ops::Engine& engine_;
  std::shared_ptr<Table> table_;
  int rank_, size_;
  uint64_t collectives_ = 0;
  std::vector<uint64_t> sends_, receives_;  // by peer
};

}  // namespace

std::unique_ptr<ops::Communicator> CreateReferenceCommunicator(
    ops::Bootstrap& bootstrap, ops::Engine& engine, ops::Members members) {
  return std::make_unique<ReferenceCommunicator>(bootstrap, engine, std::move(members));
}

}  // namespace dtrun::testing

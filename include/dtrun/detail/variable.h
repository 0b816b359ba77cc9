#ifndef DTRUN_DETAIL_VARIABLE_H_
#define DTRUN_DETAIL_VARIABLE_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// When the replicas' copies of a variable come together.
enum class VariableSynchronization {
  kOnWrite,  ///< when it is assigned: all replicas have the same, as of a weight
  kOnRead,   ///< when it is read: each replica writes its own, as of a metric
};

/// What becomes of the values of all replicas then.
enum class VariableAggregation {
  kNone,  ///< they cannot be put together
  kSum,
  kMean,
  kOnlyFirstReplica,  ///< replica 0's
};

struct VariableOptions {
  VariableSynchronization synchronization = VariableSynchronization::kOnWrite;
  VariableAggregation aggregation = VariableAggregation::kNone;
};

inline const char* NameOf(VariableAggregation aggregation) {
  switch (aggregation) {
    case VariableAggregation::kNone: return "none";
    case VariableAggregation::kSum: return "sum";
    case VariableAggregation::kMean: return "mean";
    case VariableAggregation::kOnlyFirstReplica: return "only_first_replica";
  }
  return "unknown aggregation";
}

/// Where a variable's numbers lie. A strategy makes them.
class VariablePlace {
 public:
  virtual ~VariablePlace() = default;
  virtual void* data() = 0;
  /// Collective: replaces all of it by `bytes`, which are the same on all replicas.
  virtual void Write(const void* bytes, uint64_t count) = 0;
};

/// A copy in each replica.
class OwnPlace : public VariablePlace {
 public:
  explicit OwnPlace(uint64_t bytes) : words_((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t)) {}
  void* data() override { return words_.data(); }
  void Write(const void* bytes, uint64_t count) override {
    if (count > 0) std::memcpy(words_.data(), bytes, count);
  }

 private:
  std::vector<uint64_t> words_;
};

/// One copy for the ranks of `host`, which outlives it.
class SharedPlace : public VariablePlace {
 public:
  /// Collective over the host.
  SharedPlace(Communicator& host, uint64_t bytes)
      : host_(host), memory_(host.AllocateShared(bytes)) {}
  void* data() override { return memory_.data(); }
  void Write(const void* bytes, uint64_t count) override {
    host_.Barrier();  // nobody reads the old ones any more
    if (host_.rank() == 0 && count > 0) std::memcpy(memory_.data(), bytes, count);
    host_.Barrier();
  }

 private:
  Communicator& host_;
  Memory memory_;
};

/// Numbers that belong to all replicas of a strategy, besides the parameters of a network: counts
/// of steps, moving averages, metrics. Made by StrategyScope::MakeVariable; the strategy outlives
/// it. What is collective is called by all replicas. Not thread-safe.
///
///   written, synchronised on write, sum: replica 0 assigns 1, replica 1 assigns 2  ->  both have 3
///   read, synchronised on read, sum:     replica 0 has 1, replica 1 has 2  ->  both Read() 3
template <typename T>
class Variable {
 public:
  Variable(
      Communicator& replicas, std::string name, uint64_t count, VariableOptions options,
      std::unique_ptr<VariablePlace> place)
      : replicas_(replicas),
        name_(std::move(name)),
        count_(count),
        options_(options),
        place_(std::move(place)) {}

  const std::string& name() const { return name_; }
  uint64_t count() const { return count_; }
  const VariableOptions& options() const { return options_; }
  /// What this replica has, `count()` numbers: of a variable that is synchronised on read, what it
  /// has written itself. Local.
  const T* data() const { return static_cast<const T*>(place_->data()); }

  /// What all replicas have together, the same bits on all. Collective where it is synchronised on
  /// read, which needs an aggregation (else kInvalidArgument).
  std::vector<T> Read() const {
    std::vector<T> values(data(), data() + count_);
    if (on_read()) Aggregate("read", values);
    return values;
  }

  /// Of a variable that is synchronised on read: what this replica has from now on; local. Else
  /// collective: what the replicas pass, aggregated, is what all of them have then; where there is
  /// no aggregation that is kInvalidArgument. Also for another number of values than count().
  void Assign(std::vector<T> values) {
    CheckCount(values);
    if (!on_read()) Aggregate("assign", values);
    place_->Write(values.data(), values.size() * sizeof(T));
  }
  /// The same with the present values plus, or minus, the aggregated `change`.
  void AssignAdd(std::vector<T> change) { AssignChange(std::move(change), false); }
  void AssignSub(std::vector<T> change) { AssignChange(std::move(change), true); }

  /// Collective, for all replicas with the same values, as from a checkpoint: what Read() then
  /// returns. A sum that is synchronised on read is replica 0's then, and zeros elsewhere.
  void Set(std::vector<T> values) {
    CheckCount(values);
    const bool elsewhere = on_read() && options_.aggregation == VariableAggregation::kSum;
    if (elsewhere && replicas_.rank() != 0) values.assign(values.size(), T{});
    place_->Write(values.data(), values.size() * sizeof(T));
  }

 private:
  bool on_read() const { return options_.synchronization == VariableSynchronization::kOnRead; }

  void AssignChange(std::vector<T> change, bool subtracts) {
    CheckCount(change);
    if (!on_read()) Aggregate("assign", change);
    for (uint64_t i = 0; i < count_; ++i)
      change[i] = static_cast<T>(subtracts ? data()[i] - change[i] : data()[i] + change[i]);
    place_->Write(change.data(), change.size() * sizeof(T));
  }

  void Aggregate(const char* call, std::vector<T>& values) const {
    const Buffer all(values.data(), values.size());
    switch (options_.aggregation) {
      case VariableAggregation::kSum: return replicas_.AllReduce(all, ReduceOp::kSum);
      case VariableAggregation::kMean: return replicas_.AllReduce(all, ReduceOp::kAverage);
      case VariableAggregation::kOnlyFirstReplica: return replicas_.Broadcast(all, 0);
      case VariableAggregation::kNone: break;
    }
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string("variable '") + name_ + "': " + call +
            " needs the values of all replicas together, and its aggregation is none; expected "
            "sum, mean or only_first_replica");
  }

  void CheckCount(const std::vector<T>& values) const {
    if (values.size() == count_) return;
    throw Error(
        ErrorCode::kInvalidArgument, "variable '" + name_ + "' has " + std::to_string(count_) +
                                         " numbers; found " + std::to_string(values.size()));
  }

  Communicator& replicas_;
  std::string name_;
  uint64_t count_;
  VariableOptions options_;
  std::unique_ptr<VariablePlace> place_;
};

}  // namespace dtrun

#endif

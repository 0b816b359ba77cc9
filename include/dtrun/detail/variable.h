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

/// The moment when the replicas' copies of a variable are combined.
enum class VariableSynchronization {
  kOnWrite,  ///< at assignment: all replicas have the same value, as for a weight
  kOnRead,   ///< at a read: each replica writes its own value, as for a metric
};

/// The way in which the values of all replicas are combined.
enum class VariableAggregation {
  kNone,              ///< the values cannot be combined
  kSum,               ///< the sum
  kMean,              ///< the mean
  kOnlyFirstReplica,  ///< the value of replica 0
};

/// The options of a Variable. The same on all replicas.
struct VariableOptions {
  /// The moment when the copies are combined.
  VariableSynchronization synchronization = VariableSynchronization::kOnWrite;
  /// The way in which the copies are combined.
  VariableAggregation aggregation = VariableAggregation::kNone;
};

/// The name of the aggregation: "none", "sum", "mean" or "only_first_replica".
inline const char* NameOf(VariableAggregation aggregation) {
  switch (aggregation) {
    case VariableAggregation::kNone: return "none";
    case VariableAggregation::kSum: return "sum";
    case VariableAggregation::kMean: return "mean";
    case VariableAggregation::kOnlyFirstReplica: return "only_first_replica";
  }
  return "unknown aggregation";
}

/// The memory of a variable's numbers. A strategy makes it.
class VariablePlace {
 public:
  virtual ~VariablePlace() = default;
  /// The first byte of the memory. Local. Valid as long as this object.
  virtual void* data() = 0;
  /// Collective: copies `count` bytes from `bytes` to the memory. All replicas pass the same bytes.
  virtual void Write(const void* bytes, uint64_t count) = 0;
};

/// One copy in each replica.
class OwnPlace : public VariablePlace {
 public:
  /// Allocates `bytes` bytes of zeros. Local.
  explicit OwnPlace(uint64_t bytes) : words_((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t)) {}
  void* data() override { return words_.data(); }
  void Write(const void* bytes, uint64_t count) override {
    if (count > 0) std::memcpy(words_.data(), bytes, count);
  }

 private:
  std::vector<uint64_t> words_;
};

/// One copy for the ranks of `host`, which outlives this object.
class SharedPlace : public VariablePlace {
 public:
  /// Allocates `bytes` bytes that all ranks of the host map. Collective over the host.
  SharedPlace(Communicator& host, uint64_t bytes)
      : host_(host), memory_(host.AllocateShared(bytes)) {}
  void* data() override { return memory_.data(); }
  void Write(const void* bytes, uint64_t count) override {
    host_.Barrier();  // all ranks have read the old numbers
    if (host_.rank() == 0 && count > 0) std::memcpy(memory_.data(), bytes, count);
    host_.Barrier();
  }

 private:
  Communicator& host_;
  Memory memory_;
};

/// Numbers of all replicas of a strategy, other than the parameters of a network: counts of steps,
/// moving averages, metrics. StrategyScope::MakeVariable makes it. The strategy outlives it. All
/// replicas call the collective functions. Not thread-safe.
///
///   written, synchronised on write, sum: replica 0 assigns 1, replica 1 assigns 2  ->  both have 3
///   read, synchronised on read, sum:     replica 0 has 1, replica 1 has 2  ->  both Read() 3
template <typename T>
class Variable {
 public:
  /// Makes a variable of `count` numbers, which lie in `place`. `replicas` outlives this object.
  Variable(
      Communicator& replicas, std::string name, uint64_t count, VariableOptions options,
      std::unique_ptr<VariablePlace> place)
      : replicas_(replicas),
        name_(std::move(name)),
        count_(count),
        options_(options),
        place_(std::move(place)) {}

  /// The name, which no other variable of the strategy has.
  const std::string& name() const { return name_; }
  /// The number of elements.
  uint64_t count() const { return count_; }
  /// The options from MakeVariable.
  const VariableOptions& options() const { return options_; }
  /// The `count()` numbers of this replica. With kOnRead, they are the numbers that this replica
  /// has written. Local.
  const T* data() const { return static_cast<const T*>(place_->data()); }

  /// Returns the combined numbers of all replicas, with the same bits on all replicas. With kOnRead
  /// it is collective and needs an aggregation, otherwise kInvalidArgument.
  std::vector<T> Read() const {
    std::vector<T> values(data(), data() + count_);
    if (on_read()) Aggregate("read", values);
    return values;
  }

  /// With kOnRead, sets this replica's numbers; local. With kOnWrite, it is collective: all
  /// replicas get the aggregate of the replicas' arguments. kInvalidArgument: kOnWrite without an
  /// aggregation, or a number of values other than count().
  void Assign(std::vector<T> values) {
    CheckCount(values);
    if (!on_read()) Aggregate("assign", values);
    place_->Write(values.data(), values.size() * sizeof(T));
  }
  /// The same as Assign, with the present numbers plus the aggregated `change`.
  void AssignAdd(std::vector<T> change) { AssignChange(std::move(change), false); }
  /// The same as Assign, with the present numbers minus the aggregated `change`.
  void AssignSub(std::vector<T> change) { AssignChange(std::move(change), true); }

  /// Sets the numbers that Read() will return, for example from a checkpoint. Collective; all
  /// replicas pass the same values. With kOnRead and kSum, replica 0 gets the values and the others
  /// get zeros.
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
            " combines the values of all replicas, but the aggregation is none; expected "
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

#ifndef DTRUN_DETAIL_SHARDED_STATE_H_
#define DTRUN_DETAIL_SHARDED_STATE_H_

#include <dtrun/c.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/error.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace detail {

/// What KeptShards keeps: the values and the state of an optimizer, of which each rank owns a
/// share. Both consist of items, such as a parameter. An item has columns of equally many elements:
/// its value, and its state. Internal.
class ShardedState {
 public:
  /// Elements of an item.
  struct Piece {
    uint64_t item = 0, first = 0, count = 0;
  };
  using Visit = std::function<void(const Piece& piece, const std::vector<Buffer>& columns)>;

  virtual ~ShardedState() = default;
  /// The elements of each item. Equal on all ranks.
  virtual std::vector<uint64_t> counts() const = 0;
  /// The types of an item's columns. Equal on all ranks.
  virtual std::vector<DType> TypesOf(size_t item) const = 0;
  /// Calls `visit` with each piece of this rank's share, and the piece of each column. The pieces
  /// are the same in each call.
  virtual void ForOwn(const Visit& visit) = 0;
  /// Takes a column of a whole item, from host memory. All ranks get all columns; each takes those
  /// that it has. `first_of_host`: of the ranks of this host.
  virtual void Take(size_t item, size_t column, const Buffer& whole, bool first_of_host) = 0;
  /// What the ranks have beside the shares, equal on all of them.
  virtual std::string Equal() = 0;
  /// Takes such bytes. kMismatch: they are of another training.
  virtual void TakeEqual(const std::string& bytes) = 0;
  /// From now on, `call` runs before each step.
  virtual void BeforeStep(std::function<void()> call) = 0;
  /// Asks the next step to copy what it makes of this rank's share, all columns but the first:
  /// `places` has one for each of these columns of each piece, in the order of ForOwn. Before it
  /// writes there, when all ranks have begun the step, it calls `begin`. No places: no copies.
  virtual void CopyStateInStep(const std::vector<void*>& places, std::function<void()> begin) {
    (void)places, (void)begin;
  }
  /// Whether the last step has done so. If not, the places have no meaning.
  virtual bool StateIsCopied() const { return false; }
};

/// A ShardedOptimizer, which outlives this object. Its items are the parameters; the columns are
/// the value and the state slots.
class OptimizerShards : public ShardedState {
 public:
  explicit OptimizerShards(ShardedOptimizer& optimizer) : optimizer_(optimizer) {}

  std::vector<uint64_t> counts() const override {
    std::vector<uint64_t> counts;
    for (const Parameter& parameter : optimizer_.parameters())
      counts.push_back(parameter.value.count);
    return counts;
  }
  std::vector<DType> TypesOf(size_t item) const override {
    const Parameter& parameter = optimizer_.parameters()[item];
    std::vector<DType> types = {parameter.value.dtype};
    for (const StateSlot& slot : optimizer_.slots_)
      types.push_back(SliceableOptimizer::SlotDType(slot, parameter));
    return types;
  }
  void ForOwn(const Visit& visit) override {
    optimizer_.ForOwnSlices([&](const dtrun_parameter_slice& slice) {
      const auto item = static_cast<size_t>(slice.parameter);
      const std::vector<DType> types = TypesOf(item);
      std::vector<Buffer> columns;
      for (size_t c = 0; c < types.size(); ++c) {
        Buffer column = optimizer_.parameters()[item].value;  // its device and stream
        column.data = c == 0 ? slice.value : slice.slots[c - 1];
        column.count = slice.count;
        column.dtype = types[c];
        columns.push_back(column);
      }
      visit({item, slice.first, slice.count}, columns);
    });
  }
  void Take(size_t item, size_t column, const Buffer& whole, bool first_of_host) override {
    if (column > 0)
      Check(dtrun_shards_set_state(optimizer_.handle_.get(), column - 1, item, whole.data));
    else if (!optimizer_.options_.one_copy_per_host || first_of_host)
      Copy(whole, optimizer_.parameters()[item].value);
  }
  std::string Equal() override {
    std::string bytes;
    for (const NamedBuffer& scalar : optimizer_.inner_.scalars())
      bytes.append(static_cast<const char*>(scalar.buffer.data), scalar.buffer.bytes());
    return bytes;
  }
  void TakeEqual(const std::string& bytes) override {
    size_t at = 0;
    for (const NamedBuffer& scalar : optimizer_.inner_.scalars()) {
      if (bytes.size() - at < scalar.buffer.bytes())
        throw Error(ErrorCode::kMismatch, "the kept state has another size of " + scalar.name);
      if (scalar.buffer.count > 0)
        std::memcpy(scalar.buffer.data, bytes.data() + at, scalar.buffer.bytes());
      at += scalar.buffer.bytes();
    }
  }
  void BeforeStep(std::function<void()> call) override {
    optimizer_.before_step_ = std::move(call);
  }
  void CopyStateInStep(const std::vector<void*>& places, std::function<void()> begin) override {
    begin_copies_ = std::move(begin);
    const auto call = [](void* self) { static_cast<OptimizerShards*>(self)->begin_copies_(); };
    Check(dtrun_shards_copy_state(
        optimizer_.handle_.get(), places.data(), places.size(), call, this));
  }
  bool StateIsCopied() const override {
    int32_t is_copied = 0;
    Check(dtrun_shards_state_is_copied(optimizer_.handle_.get(), &is_copied));
    return is_copied != 0;
  }

 private:
  ShardedOptimizer& optimizer_;
  std::function<void()> begin_copies_;  // of the next step
};

}  // namespace detail
}  // namespace dtrun

#endif

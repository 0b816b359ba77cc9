#ifndef DTRUN_DETAIL_TORCH_SAMPLER_H_
#define DTRUN_DETAIL_TORCH_SAMPLER_H_

#include <dtrun/detail/torch_tensors.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace dtrun {
namespace torch {

/// The rule for examples that cannot be dealt evenly.
enum class Remainder {
  kRepeat,  ///< all ranks get the same number; the first examples of the epoch occur twice
  kDrop,    ///< all ranks get the same number; the last examples of the epoch are dropped
  /// every example exactly once; the first ranks get one more. Ranks may then have different
  /// numbers of batches. Use it for evaluation, not with an optimizer's step, which is collective.
  kUneven,
};

/// The options of a DistributedSampler. The same on all ranks.
struct SamplerOptions {
  bool shuffle = true;  ///< true: another order in each epoch; false: the order of the data set
  uint64_t seed = 0;    ///< together with the epoch, decides the order
  /// The rule for examples that cannot be dealt evenly.
  Remainder remainder = Remainder::kRepeat;
};

/// Deals the examples of a data set to the ranks: a sampler for torch::data::make_data_loader. All
/// ranks shuffle alike, by seed and epoch. Rank r of p takes positions r, r + p, r + 2 p. The
/// ranks' n-th batches of size b together are the n-th batch of size p b in one process.
///
///   5 examples in the order 3 0 4 1 2, 2 ranks, kRepeat  ->  {3, 4, 2} and {0, 1, 3}
///
/// A data loader calls `reset()` at the start of each pass. If an index of the present epoch was
/// drawn, `reset()` moves to the next epoch. Not thread-safe.
class DistributedSampler : public ::torch::data::samplers::Sampler<> {
 public:
  /// Deals the examples 0 to `size` - 1 to the ranks of `communicator`, from epoch 0. Local.
  DistributedSampler(const Communicator& communicator, size_t size, SamplerOptions options = {})
      : options_(options),
        rank_(static_cast<size_t>(communicator.rank())),
        ranks_(static_cast<size_t>(communicator.size())),
        size_(size) {
    Deal();
  }

  /// Starts this epoch from its beginning. Thus a resumed training continues with the same order.
  void set_epoch(size_t epoch) {
    epoch_ = epoch;
    Deal();
  }
  /// The present epoch, from 0.
  size_t epoch() const { return epoch_; }
  /// The number of indices that this rank gets in an epoch.
  size_t local_size() const { return indices_.size(); }

  /// Starts an epoch: the next epoch if an index of the present epoch was drawn, otherwise the
  /// present epoch. A `new_size` replaces the number of examples.
  void reset(c10::optional<size_t> new_size = c10::nullopt) override {
    size_ = new_size.value_or(size_);
    set_epoch(next_ > 0 ? epoch_ + 1 : epoch_);
  }

  /// Returns the next `batch_size` indices, or those that are left. nullopt at the end of the
  /// epoch.
  c10::optional<std::vector<size_t>> next(size_t batch_size) override {
    const size_t count = std::min(batch_size, indices_.size() - next_);
    if (count == 0) return c10::nullopt;
    const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(next_);
    next_ += count;
    return std::vector<size_t>(first, first + static_cast<std::ptrdiff_t>(count));
  }

  /// Moves to batch number `batch` of size `batch_size`, counted from the first batch of epoch 0.
  void seek(uint64_t batch, size_t batch_size) {
    const uint64_t per_epoch = (local_size() + batch_size - 1) / batch_size;
    set_epoch(per_epoch == 0 ? 0 : static_cast<size_t>(batch / per_epoch));
    if (per_epoch > 0) next_ = static_cast<size_t>(batch % per_epoch) * batch_size;
  }

  /// Saves the epoch and the position in it.
  void save(::torch::serialize::OutputArchive& archive) const override {
    archive.write("epoch", ::torch::tensor(static_cast<int64_t>(epoch_)), /*is_buffer=*/true);
    archive.write("next", ::torch::tensor(static_cast<int64_t>(next_)), /*is_buffer=*/true);
  }

  /// Continues at the saved epoch and position. The size, the number of ranks and the options are
  /// those of this sampler.
  void load(::torch::serialize::InputArchive& archive) override {
    set_epoch(Read(archive, "epoch"));
    next_ = std::min(Read(archive, "next"), indices_.size());
  }

 private:
  static size_t Read(::torch::serialize::InputArchive& archive, const char* key) {
    Tensor value;
    archive.read(key, value, /*is_buffer=*/true);
    return static_cast<size_t>(value.item<int64_t>());
  }

  void Deal() {
    std::vector<size_t> order(size_);
    std::iota(order.begin(), order.end(), size_t{0});
    if (options_.shuffle) Shuffle(order);
    if (options_.remainder == Remainder::kDrop) order.resize(size_ / ranks_ * ranks_);
    if (options_.remainder == Remainder::kRepeat && size_ > 0) {
      const size_t rest = (ranks_ - size_ % ranks_) % ranks_;
      for (size_t i = 0; i < rest; ++i) order.push_back(order[i]);
    }
    indices_.clear();
    for (size_t i = rank_; i < order.size(); i += ranks_) indices_.push_back(order[i]);
    next_ = 0;
  }

  // Fisher-Yates. std::shuffle may differ between standard libraries, and therefore between hosts.
  void Shuffle(std::vector<size_t>& order) const {
    std::seed_seq seeds{
        static_cast<uint32_t>(options_.seed), static_cast<uint32_t>(options_.seed >> 32),
        static_cast<uint32_t>(epoch_)};
    std::mt19937_64 random(seeds);
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(random() % i)]);
  }

  SamplerOptions options_;
  size_t rank_, ranks_, size_;
  size_t epoch_ = 0;
  std::vector<size_t> indices_;  // of this rank, in this epoch
  size_t next_ = 0;              // index in indices_
};

}  // namespace torch
}  // namespace dtrun

#endif

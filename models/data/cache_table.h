#ifndef DTRUN_MODELS_DATA_CACHE_TABLE_H_
#define DTRUN_MODELS_DATA_CACHE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace dtrun::models {

/// An example on its way through a pipeline, before anything is computed of it: its number in the
/// source or, behind a Cache, among what is kept; and which pass through that it is.
struct ExampleRef {
  uint64_t example = 0, epoch = 0;
};

/// What a Cache keeps. Thread-safe.
class CacheTable {
 public:
  /// `refs`: what comes out of the steps before the Cache in their first pass. `floats` of each
  /// example are kept; 0: nothing is computed there.
  CacheTable(std::vector<ExampleRef> refs, size_t floats);

  uint64_t count() const { return refs_.size(); }
  const ExampleRef& ref(uint64_t position) const { return refs_[position]; }

  /// Copies the values and the label at `position`; false if they are not there yet.
  bool Find(uint64_t position, float* values, int32_t* label);
  /// Keeps them, unless somebody else was faster.
  void Store(uint64_t position, const float* values, int32_t label);
  /// Whether it keeps values at all.
  bool keeps_values() const { return floats_ > 0; }

 private:
  std::vector<ExampleRef> refs_;
  size_t floats_;
  std::mutex mutex_;
  std::vector<float> values_;
  std::vector<int32_t> labels_;
  std::vector<uint8_t> there_;
};

/// The tables of one Cache: one for each share of the files that somebody passes through it.
class CacheTables {
 public:
  std::shared_ptr<CacheTable> Get(
      const std::pair<int, int>& share, const std::function<std::shared_ptr<CacheTable>()>& make);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::shared_ptr<CacheTable>> tables_;
};

}  // namespace dtrun::models

#endif

#include "models/data/cache_table.h"

#include <algorithm>

namespace dtrun::models {

CacheTable::CacheTable(std::vector<ExampleRef> refs, size_t floats)
    : refs_(std::move(refs)), floats_(floats), there_(floats > 0 ? refs_.size() : 0) {}

bool CacheTable::Find(uint64_t position, float* values, int32_t* label) {
  const std::lock_guard lock(mutex_);
  if (there_[position] == 0) return false;
  std::copy_n(values_.data() + position * floats_, floats_, values);
  *label = labels_[position];
  return true;
}

void CacheTable::Store(uint64_t position, const float* values, int32_t label) {
  const std::lock_guard lock(mutex_);
  if (there_[position] != 0) return;
  if (values_.empty()) {
    values_.resize(refs_.size() * floats_);
    labels_.resize(refs_.size());
  }
  std::copy_n(values, floats_, values_.data() + position * floats_);
  labels_[position] = label;
  there_[position] = 1;
}

std::shared_ptr<CacheTable> CacheTables::Get(
    const std::pair<int, int>& share, const std::function<std::shared_ptr<CacheTable>()>& make) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<CacheTable>& table = tables_[share];
  if (table == nullptr) table = make();
  return table;
}

}  // namespace dtrun::models

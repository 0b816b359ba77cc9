#ifndef DTRUN_TESTS_MODELS_DATA_PIPELINE_RIG_H_
#define DTRUN_TESTS_MODELS_DATA_PIPELINE_RIG_H_

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "dtrun/error.h"
#include "models/data/pipeline.h"

// Helpers for tests of the input pipeline.

namespace dtrun::models {

using Ids = std::vector<int32_t>;

/// `count` examples of one value each. Example i has the value i and the label i.
inline Pipeline Numbers(uint64_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  Ids labels(count);
  std::iota(labels.begin(), labels.end(), 0);
  return Pipeline::FromMemory({count, 1}, values, labels);
}

inline Ids LabelsOf(const Batch& batch) { return {batch.labels().begin(), batch.labels().end()}; }

/// The rest of the iterator's epoch, batch by batch.
inline std::vector<Ids> RestOfEpoch(Iterator& iterator) {
  std::vector<Ids> batches;
  while (const Batch* batch = iterator.Next()) batches.push_back(LabelsOf(*batch));
  return batches;
}

inline std::vector<Ids> BatchesOf(const Pipeline& pipeline, uint64_t epoch = 0) {
  Iterator iterator(pipeline, {epoch, 0});
  return RestOfEpoch(iterator);
}

inline Ids Joined(const std::vector<Ids>& batches) {
  Ids all;
  for (const Ids& ids : batches) all.insert(all.end(), ids.begin(), ids.end());
  return all;
}

/// The labels of an epoch of a pipeline without a Batch.
inline Ids OrderOf(const Pipeline& pipeline, uint64_t epoch = 0) {
  return Joined(BatchesOf(pipeline.Batch(3), epoch));
}

inline std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace dtrun::models

#endif

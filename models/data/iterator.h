#ifndef DTRUN_MODELS_DATA_ITERATOR_H_
#define DTRUN_MODELS_DATA_ITERATOR_H_

#include <cstdint>
#include <memory>

#include "models/data/pipeline.h"

namespace dtrun::models {

/// Runs through a pipeline's batches, epoch after epoch:
///
///   Iterator batches(pipeline);
///   for (int epoch = 0; epoch < 8; ++epoch)
///     while (const Batch* batch = batches.Next()) Train(*batch);
///
/// What it returns is a pure function of the pipeline and the position, so that a training which
/// starts at a position of an earlier one goes on with the same examples. In the steady state
/// nothing is allocated. Not thread-safe. With Prefetch a thread works for it, which ends with it.
class Iterator {
 public:
  /// All batches whole: the world of one rank. The pipeline has to have a Batch.
  explicit Iterator(const Pipeline& pipeline, const Position& start = {});
  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  /// The next batch, valid until the next call of a function of this object; null at the end of an
  /// epoch, after which the next call begins the next one. Throws what reading or a Map threw; the
  /// next call would try that batch again.
  const Batch* Next();
  /// Goes on from there: no example is read or computed in order to get there. A batch behind the
  /// epoch's last is its end.
  void Seek(const Position& position);
  /// Of the batch that Next would return.
  const Position& position() const;
  /// For how long Next has made its callers wait, since construction.
  double wait_seconds() const;

 private:
  friend class DistributedPipeline;
  class State;
  explicit Iterator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dtrun::models

#endif

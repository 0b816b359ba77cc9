#ifndef DTRUN_MODELS_DATA_ITERATOR_STATE_H_
#define DTRUN_MODELS_DATA_ITERATOR_STATE_H_

#include <chrono>
#include <memory>

#include "models/data/batch_maker.h"
#include "models/data/iterator.h"
#include "models/data/prefetcher.h"

namespace dtrun::models {

/// Makes batches itself or has them made by a Prefetcher.
class Iterator::State {
 public:
  State(const ReadPlan& plan, const Position& start);

  const Batch* Next();
  void Seek(const Position& position);
  const Position& position() const { return position_; }
  double wait_seconds() const { return std::chrono::duration<double>(wait_).count(); }

 private:
  std::unique_ptr<BatchMaker> maker_;
  std::unique_ptr<Prefetcher> prefetcher_;
  Batch batch_;  // without a Prefetcher
  Position position_;
  bool failed_ = false;  // the last Next threw
  std::chrono::steady_clock::duration wait_{};
};

}  // namespace dtrun::models

#endif

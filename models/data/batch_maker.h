#ifndef DTRUN_MODELS_DATA_BATCH_MAKER_H_
#define DTRUN_MODELS_DATA_BATCH_MAKER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/data/batch.h"
#include "models/data/batch_sizes.h"
#include "models/data/evaluator.h"
#include "models/data/pipeline.h"
#include "models/data/stream.h"

namespace dtrun::models {

/// What one rank reads of a pipeline.
struct ReadPlan {
  Pipeline pipeline;
  int rank = 0, ranks = 1;
  uint64_t batches = 0;  ///< of one epoch, on every rank
  /// Where each rank has a stream of its own: the files it reads, the examples of its full batches,
  /// and what all ranks' batches hold. Else, `own_batch` being 0, every rank has the same stream of
  /// global batches and takes its part of each.
  FileShare files = {};
  uint64_t own_batch = 0;
  std::vector<BatchSizes> sizes = {};
  int compute_threads = 0;
};

/// The plan of a world of one. Throws Error kInvalidArgument when there is no Batch
/// or an epoch has no batch.
ReadPlan PlanAlone(const Pipeline& pipeline);

/// Throws Error kInvalidArgument when an epoch has none.
void ExpectBatches(const Pipeline& pipeline, uint64_t batches);

/// Makes a rank's batches, one after the other. Not thread-safe.
class BatchMaker {
 public:
  BatchMaker(std::shared_ptr<const ReadPlan> plan, const Position& start);

  /// Makes the next batch; false at the end of an epoch. After an exception the next call tries the
  /// same batch again.
  bool Make(Batch* batch);
  void Seek(const Position& position);
  const Position& position() const { return position_; }

 private:
  void ReadRefs();
  void Place(Batch* batch);
  void PlacePart(Batch* batch);
  void PlaceOwn(Batch* batch) const;
  void Fill(Batch* batch);
  void FillWithRows(Batch* batch) const;

  std::shared_ptr<const ReadPlan> plan_;
  Evaluator evaluator_;
  std::unique_ptr<Stream<RefBatch>> refs_stream_;
  RefBatch refs_;
  size_t first_ref_ = 0;  // of this rank's part
  Position position_;
  bool started_ = false;  // the stream stands at the position
};

}  // namespace dtrun::models

#endif

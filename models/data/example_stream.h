#ifndef DTRUN_MODELS_DATA_EXAMPLE_STREAM_H_
#define DTRUN_MODELS_DATA_EXAMPLE_STREAM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/data/pipeline_node.h"

namespace dtrun::models {

/// One pass through what comes out of a pipeline's step, and then the next: a pure function of the
/// pipeline and the pass's number. Only numbers of examples flow here, nothing is computed of them;
/// so it is cheap to pass over some. Not thread-safe. Allocates in its first pass only.
template <typename T>
class Stream {
 public:
  virtual ~Stream() = default;

  /// Begins pass `pass`, from 0. Comes before the other functions.
  virtual void Start(uint64_t pass) = 0;
  /// False at the pass's end, and from then on.
  virtual bool Next(T* out) = 0;
  /// Passes over `count`, or as many as there are; returns how many.
  virtual uint64_t Skip(uint64_t count) = 0;
};

using RefBatch = std::vector<ExampleRef>;

/// What comes out of `node`, when the source has the files of `share` only. `node` outlives it and
/// has no Batch before it.
std::unique_ptr<Stream<ExampleRef>> OpenExamples(const Node& node, const FileShare& share);

/// The same for a node that has one, with `batch` examples in a full batch.
std::unique_ptr<Stream<RefBatch>> OpenBatches(
    const Node& node, const FileShare& share, uint64_t batch);

/// What `cache`, a Cache, keeps of the files of `share`.
std::shared_ptr<CacheTable> CacheTableOf(const Node& cache, const FileShare& share);

}  // namespace dtrun::models

#endif

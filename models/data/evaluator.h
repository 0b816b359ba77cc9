#ifndef DTRUN_MODELS_DATA_EVALUATOR_H_
#define DTRUN_MODELS_DATA_EVALUATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/data/cache_table.h"
#include "models/data/example_source.h"
#include "models/data/node.h"

namespace dtrun::models {

/// What a pipeline's functions make of an example, by way of its Caches. Not thread-safe. Allocates
/// when it is made, only.
class Evaluator {
 public:
  /// `node` outlives it.
  Evaluator(const Node& node, const FileShare& share);

  /// Whether there is anything to compute.
  bool computes() const { return computes_; }
  /// Reads the files of the share into memory. Throws Error.
  void LoadFiles() const;
  /// Where nothing is computed: the example as the source has it.
  ExampleRow Row(const ExampleRef& ref) const;
  /// Writes the values and the label.
  void Evaluate(const ExampleRef& ref, float* values, int32_t* label);

 private:
  // The functions behind the source, or behind a Cache.
  struct Stage {
    std::shared_ptr<CacheTable> table;  // null at the source
    std::vector<const Node*> maps;
    std::vector<float> scratch[2];
  };

  void RunStage(size_t stage, const ExampleRef& ref, float* values, int32_t* label);
  void ReadInput(size_t stage, const ExampleRef& ref, float* values, int32_t* label);
  void ReadSource(const ExampleRef& ref, float* values, int32_t* label) const;

  const ExampleSource& source_;
  FileShare share_;
  std::vector<Stage> stages_;  // from the source on
  bool computes_ = false;
};

}  // namespace dtrun::models

#endif

#ifndef DTRUN_MODELS_LAYERS_PATH_H_
#define DTRUN_MODELS_LAYERS_PATH_H_

#include <memory>
#include <string>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/layer.h"

namespace dtrun::models {

/// Layers one after the other inside a composite layer, such as a residual block, which passes its
/// own calls on. They take whole chunks. May be empty. Not thread-safe.
class Path {
 public:
  /// `name` stands in front of the names of its parameters and in its errors: "main".
  Path(std::string name, std::vector<std::unique_ptr<Layer>> layers);

  bool empty() const { return entries_.empty(); }
  /// "conv2d 64 1x1, batch_norm relu"
  std::string description() const;
  std::vector<LayerConfig> configs() const;
  /// Throws Error kInvalidArgument, naming the layer, when one cannot follow the one before it, or
  /// the first or last one works in place: others read what stands there.
  Shape OutputShape(const Shape& input) const;
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const;
  std::vector<ParameterSpec> BufferSpecs(const Shape& input) const;
  bool needs_whole_share() const;
  bool synchronizes() const;

  /// Takes the first of the parameters and buffers that the builder has, and leaves it pointing
  /// behind them.
  Tensor* BuildForward(Builder& builder, Tensor* input);
  /// The output has gradient memory, which belongs to the caller.
  void BuildBackward(Builder& builder, bool input_gradient);
  void PrepareWeights();
  void Forward(const Pass& pass);
  void Backward(const Pass& pass);

 private:
  struct Entry {
    std::unique_ptr<Layer> layer;
    size_t parameter_count = 0;
    bool input_gradient = false;
    Tensor *input = nullptr, *output = nullptr;
  };

  template <typename Visit>
  Shape Walk(const Shape& input, const Visit& visit) const;
  std::string NameOf(const std::string& outer, size_t i) const;
  Tensor* BuildEntry(Builder& builder, size_t i, Tensor* input);

  std::string name_;
  std::vector<Entry> entries_;
};

}  // namespace dtrun::models

#endif

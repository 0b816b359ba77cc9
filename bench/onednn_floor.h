#ifndef DTRUN_BENCH_ONEDNN_FLOOR_H_
#define DTRUN_BENCH_ONEDNN_FLOOR_H_

#include <functional>
#include <string>
#include <vector>

#include "models/layers/sequential.h"

namespace dtrun::bench {

/// One of the products of a training step: what a convolution or a dense layer computes on its way
/// forward, or for the gradient of its input or of its weights.
struct FloorPart {
  std::string name;            ///< "conv2d 64 3x3 relu, backward weights"
  int micro_batch = 0;         ///< examples of a call: those at which it is fastest
  int calls = 0;               ///< for the whole batch
  std::function<void()> call;  ///< the primitive, on memory of its own
  double us_per_example = 0;   ///< as it was when the micro-batch was chosen
};

/// The products of a training step of a network, as oneDNN's primitives alone: each in the formats
/// that oneDNN chooses for it, on inputs that lie ready in them, at its own best micro-batch, which
/// is tried here. Nothing else that a step needs: no pooling, dropout, loss, sum over
/// micro-batches, change of format or optimizer. So no step that computes them with oneDNN can be
/// faster.
class OnednnFloor {
 public:
  /// In f32 or bf16, on OpenMP's threads. Throws Error kInvalidArgument when a layer is one whose
  /// products it does not know.
  OnednnFloor(const models::Shape& input, const models::LayerList& layers, DType dtype, int batch);

  /// Every product of a step over the batch, once.
  void Run() const;
  const std::vector<FloorPart>& parts() const { return parts_; }

 private:
  std::vector<FloorPart> parts_;
};

}  // namespace dtrun::bench

#endif

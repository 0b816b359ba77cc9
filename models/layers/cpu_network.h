#ifndef DTRUN_MODELS_LAYERS_CPU_NETWORK_H_
#define DTRUN_MODELS_LAYERS_CPU_NETWORK_H_

#include <memory>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/compute_device.h"

namespace dtrun::models {

/// A network on the CPU. Between layers, activations have the formats that oneDNN computes fastest.
/// Computes on OpenMP threads. SequentialOptions describes micro-batches, chunks and the head.
class CpuNetwork : public PlannedNetwork {
 public:
  explicit CpuNetwork(const NetworkToPlan& network);

  float* input() override { return input_->data; }
  const float* output() const override { return output_->data; }
  float* output_gradient() override { return output_->gradient; }
  void PrepareWeights() override;
  void Forward(const Pass& pass) override;
  void Backward(const Pass& pass, const OnReady& on_ready) override;
  const std::vector<LayerImplementation>& implementations() const override {
    return builder_.implementations();
  }

 private:
  struct Entry {
    PlacedLayer place;
    bool converts = false;  // a conversion of format or dtype, inserted here
    Tensor* output = nullptr;
    bool input_gradient = false;

    Layer& layer() const { return *place.layer; }
  };

  DType DtypeOf(size_t i) const;
  void SayWhatIsRead(size_t reader);
  void BuildForward();
  Tensor* InsertReorder(size_t i, Tensor* input);
  Tensor* BuildEntry(size_t i, Tensor* input);
  void NameEntry(size_t i);
  void BuildBackward();
  void ReleaseGradientOf(size_t i);
  int MicroBatchesOf(int examples) const;
  Pass PassOf(const Pass& chunk, int micro_batch, int micro_batches) const;
  void BackwardEntry(Entry& entry, const Pass& pass, const OnReady& on_ready);

  NetworkToPlan network_;
  Builder builder_;
  DType wanted_dtype_ = DType::kF32;  // of the layer that reads the current tensor
  std::vector<std::unique_ptr<Layer>> conversions_;
  std::vector<Entry> entries_;
  size_t head_ = 0;  // number of entries that take micro-batches
  Tensor *input_ = nullptr, *output_ = nullptr;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_CPU_NETWORK_H_

#ifndef DTRUN_MODELS_CALLBACKS_TENSORBOARD_H_
#define DTRUN_MODELS_CALLBACKS_TENSORBOARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "models/callbacks/callback.h"
#include "models/formats/tensorboard/summary_writer.h"

namespace dtrun::models {

struct TensorBoardOptions {
  std::string log_dir = "logs";
  /// Also "batch_loss" and so on, of rank 0's examples, every so many batches; 0: never.
  uint64_t update_every_batches = 0;
  uint64_t histogram_every_epochs = 0;  ///< of each parameter's values; 0: never
  bool write_graph = true;              ///< of the network
};

/// Writes the logs where TensorBoard finds them, with Keras's tags: in log_dir/train the epoch's
/// "epoch_loss", "epoch_accuracy", "epoch_learning_rate", at step = epoch from 0; in
/// log_dir/validation those of "val_loss" and so on without the "val_"; "batch_loss" at step =
/// batches of all epochs, from 1. What the logs of an evaluation say:
/// "evaluation_loss_vs_iterations", in log_dir/validation. Rank 0 writes; what cannot be written
/// does not end training: see Run::NotWritten.
class TensorBoard : public Callback {
 public:
  /// Throws Error kInvalidArgument when log_dir is empty.
  explicit TensorBoard(TensorBoardOptions options);

  std::string name() const override { return "TensorBoard"; }
  void OnTrainBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnTestEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

 private:
  SummaryWriter& In(std::unique_ptr<SummaryWriter>& writer, const std::string& folder);
  void Flush();

  TensorBoardOptions options_;
  std::unique_ptr<SummaryWriter> train_, validation_;
  std::string problem_;  // of rank 0
};

}  // namespace dtrun::models

#endif

#ifndef DTRUN_MODELS_CALLBACKS_TENSORBOARD_H_
#define DTRUN_MODELS_CALLBACKS_TENSORBOARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/formats/tensorboard/summary_writer.h"

namespace dtrun::models {

struct TensorBoardOptions {
  std::string log_dir = "logs";
  /// Interval, in batches, of "batch_loss" and so on, over rank 0's examples. 0: never.
  uint64_t update_every_batches = 0;
  uint64_t histogram_every_epochs = 0;  ///< for each parameter's values; 0: never
  bool write_graph = true;              ///< of the network
  /// For the HParams plugin, with the loss and the metrics of the last epoch. Empty: not written.
  HParams hparams = {};
  std::string command = {};  ///< the command line, as the text "command"; "": not written
};

/// Writes the logs for TensorBoard, with Keras's tags. Rank 0 writes. If a file cannot be written,
/// training continues: see Run::NotWritten. All runs are in log_dir:
/// - train: "epoch_loss", "epoch_accuracy", "epoch_learning_rate" at step = epoch, from 0.
/// - train: "batch_loss" at step = number of batches in all epochs, from 1.
/// - validation: the numbers "val_loss" and so on, as "epoch_loss" and so on.
/// - validation: the logs of an evaluation, as "evaluation_loss_vs_iterations".
/// - log_dir itself: the hyper-parameters, beside them "hparam/loss", "hparam/val_loss" and so on,
///   and the command. A training that ends by an error has
///   the status "failure".
class TensorBoard : public Callback {
 public:
  /// Throws Error kInvalidArgument if log_dir is empty.
  explicit TensorBoard(TensorBoardOptions options);
  ~TensorBoard() override;
  TensorBoard(TensorBoard&&) = default;

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
  std::unique_ptr<SummaryWriter> session_, train_, validation_;
  std::vector<std::string> session_logs_;  // names of the logs that the HParams plugin shows
  std::string problem_;                    // of rank 0
};

}  // namespace dtrun::models

#endif

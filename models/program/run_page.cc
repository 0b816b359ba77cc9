#include "models/program/run_page.h"

#include "models/callbacks/print.h"
#include "models/report/rank_times.h"
#include "models/text.h"

namespace dtrun::models {

RunReport PageOf(
    Context& job, const TrainOptions& options, const Preparation& ready, const Trained& trained) {
  const TrainingResult& result = trained.result;
  RunReport page;
  page.title = Text("cnn_fmnist on ", job.size(), job.size() == 1 ? " rank" : " ranks");
  page.results = {
      {"test accuracy", Format("%.4f", result.test_accuracy)},
      {"test loss", Format("%.4f", result.test_loss)},
      {"parameters", result.parameter_digest}};
  page.settings = {
      {"data", options.data_dir},
      {"network", ready.model->description()},
      {"strategy", options.strategy},
      {"optimizer", options.optimizer},
      {"learning rate", Text(options.learning_rate)},
      {"global batch", Text(ready.global_batch)},
      {"seed", Text(options.seed)},
      {"computed in", options.dtype},
      {"threads per rank", Text(ready.threads)},
      {"backend", job.world().backend()}};
  for (const EpochResult& epoch : result.epochs) {
    ReportEpoch shown;
    shown.loss = epoch.loss;
    shown.accuracy = epoch.train_accuracy;
    shown.validation_loss = epoch.test_loss;
    shown.validation_accuracy = epoch.test_accuracy;
    shown.examples_per_s = epoch.images_per_s;
    shown.seconds = epoch.seconds;
    page.epochs.push_back(shown);
  }
  page.ranks = GatherRankTimes(job, trained.time);
  return page;
}

}  // namespace dtrun::models

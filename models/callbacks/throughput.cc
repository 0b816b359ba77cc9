#include "models/callbacks/throughput.h"

namespace dtrun::models {

void Throughput::OnEpochBegin(Run& run) {
  run.world().Barrier();
  exposed_before_ = run.replica().statistics().total.exposed_s;
  start_ = std::chrono::steady_clock::now();
  seconds_ = 0;
  examples_ = 0;
}

void Throughput::OnBatchEnd(Run& run, const Logs&) {
  examples_ += run.global_batch;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  exposed_ = run.replica().statistics().total.exposed_s - exposed_before_;
}

void Throughput::OnEpochEnd(Run& run, Logs& logs) {
  double shared[] = {run.is_rank_0() ? seconds_ : 0, seconds_ > 0 ? exposed_ / seconds_ : 0};
  run.world().AllReduce(Buffer(shared, 2));
  logs["seconds"] = shared[0];
  logs["images_per_s"] = static_cast<double>(examples_) / shared[0];
  logs["exposed_share"] = shared[1] / run.world().size();
}

void StepLosses::OnEpochBegin(Run&) { of_epoch_.clear(); }

void StepLosses::OnBatchEnd(Run& run, const Logs&) { of_epoch_.push_back(run.batch_loss); }

void StepLosses::OnEpochEnd(Run& run, Logs&) {
  run.world().AllReduce(Buffer(of_epoch_.data(), of_epoch_.size()));
  losses_.insert(losses_.end(), of_epoch_.begin(), of_epoch_.end());
}

}  // namespace dtrun::models

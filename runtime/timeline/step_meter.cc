#include "runtime/timeline/step_meter.h"

namespace dtrun::runtime {

void StepMeter::EndStep() {
  running_.steps = 1;
  running_.total_ns = (left_ - began_).count();
  running_.exposed_ns = exposed_.count();
  running_.late_ns = (lateness_.total - counted_late_).count();
  total_ += running_;
  last_ = std::exchange(running_, {});
  began_ = left_;
  exposed_ = {};
  counted_late_ = lateness_.total;
}

}  // namespace dtrun::runtime

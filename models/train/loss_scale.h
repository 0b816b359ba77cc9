#ifndef DTRUN_MODELS_TRAIN_LOSS_SCALE_H_
#define DTRUN_MODELS_TRAIN_LOSS_SCALE_H_

#include <cstdint>

namespace dtrun::models {

/// How gradients are scaled so that small ones do not become zero in f16, and large ones are
/// noticed (P. Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2). A step
/// whose reduced gradients are not all finite changes nothing and halves the scale; so many good
/// ones in a row double it. Every rank comes to the same, since all have the same sums.
struct LossScale {
  double scale = 1;            ///< 1 or more
  uint64_t good_steps = 0;     ///< in a row, since the scale has changed
  uint64_t skipped_steps = 0;  ///< since training began
  bool operator==(const LossScale&) const = default;
};

}  // namespace dtrun::models

#endif

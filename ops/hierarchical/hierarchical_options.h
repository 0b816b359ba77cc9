#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPTIONS_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPTIONS_H_

#include <cstdint>

#include "dtrun/types.h"

namespace dtrun::ops {

/// As what f32 gradients cross from host to host.
enum class WireDType : uint8_t { kNone, kF16, kBF16 };

struct HierarchicalOptions {
  WireDType wire = WireDType::kNone;
  /// What goes up, across and down in one piece: much against the latency of its steps, little
  /// against the whole.
  uint64_t chunk_bytes = 2 << 20;
};

}  // namespace dtrun::ops

#endif

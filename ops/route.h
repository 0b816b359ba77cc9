#ifndef DTRUN_OPS_ROUTE_H_
#define DTRUN_OPS_ROUTE_H_

#include <cstdint>

namespace dtrun::ops {

/// As what f32 gradients cross from host to host.
enum class WireDType : uint8_t { kNone, kF16, kBF16 };

/// The way that data takes between hosts, where there is a choice.
struct Route {
  WireDType wire = WireDType::kNone;
  /// What goes up, across and down in one piece: much against the latency of its steps, little
  /// against the whole.
  uint64_t chunk_bytes = 2 << 20;
  /// Reductions of all ranks go straight between all of them, as if each were a host of its own: in
  /// fewer steps, but over the wire as often as there are ranks. Nothing is compressed then.
  bool flat = false;

  bool operator==(const Route&) const = default;
};

}  // namespace dtrun::ops

#endif

#ifndef DTRUN_DETAIL_BLOCK_DEVICE_H_
#define DTRUN_DETAIL_BLOCK_DEVICE_H_

#include <dtrun/detail/c_device.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

// Operations on gradients and values in host memory or on a GPU. On a GPU they are enqueued into
// the buffer's stream, and the host waits only for numbers and copies. Internal.

namespace dtrun {
namespace detail {

/// Copies between buffers of equal bytes, of the host and one GPU.
inline void Copy(const Buffer& from, const Buffer& to) { Check(dtrun_copy(ToC(from), ToC(to))); }

/// Multiplies a buffer of f32 or f64.
inline void Multiply(const Buffer& buffer, double factor) {
  Check(dtrun_multiply(ToC(buffer), factor));
}

inline std::vector<dtrun_buffer> ToC(const std::vector<Buffer>& buffers) {
  std::vector<dtrun_buffer> list;
  for (const Buffer& buffer : buffers) list.push_back(ToC(buffer));
  return list;
}

/// Sums of squares of buffers of f32 or f64, in f64, in a fixed order.
inline std::vector<double> SquaredNorms(const std::vector<Buffer>& buffers) {
  std::vector<double> norms(buffers.size());
  Check(dtrun_squared_norms(ToC(buffers).data(), buffers.size(), norms.data()));
  return norms;
}

/// The first of the buffers with an element that is infinite or NaN.
inline std::optional<size_t> FindNonFinite(const std::vector<Buffer>& buffers) {
  size_t index = 0;
  Check(dtrun_find_non_finite(ToC(buffers).data(), buffers.size(), &index));
  return index < buffers.size() ? std::optional<size_t>(index) : std::nullopt;
}
inline bool HasNonFinite(const Buffer& buffer) { return FindNonFinite({buffer}).has_value(); }

/// A buffer's elements in host memory: the buffer itself, or a copy of a buffer on a GPU.
class HostView {
 public:
  explicit HostView(const Buffer& buffer) : buffer_(buffer), view_(buffer) {
    if (buffer.device < 0) return;
    memory_.resize((buffer.bytes() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    view_ = Buffer(memory_.data(), buffer.count, buffer.dtype);
    Copy(buffer_, view_);
  }
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;

  const Buffer& buffer() const { return view_; }
  /// Copies the elements back to the GPU, after they have changed.
  void Write() const {
    if (buffer_.device >= 0) Copy(view_, buffer_);
  }

 private:
  Buffer buffer_, view_;
  std::vector<uint64_t> memory_;  // of a copy
};

}  // namespace detail
}  // namespace dtrun

#endif  // DTRUN_DETAIL_BLOCK_DEVICE_H_

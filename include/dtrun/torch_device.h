#ifndef DTRUN_TORCH_DEVICE_H_
#define DTRUN_TORCH_DEVICE_H_

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtrun/error.h>
#include <dtrun/types.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

// Where tensors lie, and the streams of GPUs; not for trainers. All of it goes through LibTorch's
// own interface to devices, so that a trainer for the CPU needs nothing of CUDA.

namespace dtrun {
namespace torch {

using at::Tensor;

namespace internal {

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
[[noreturn]] void Refuse(ErrorCode code, const Parts&... parts) {
  throw Error(code, Text(parts...));
}

/// The device of a tensor that a collective can take. `what` for errors: "parameter 'fc.weight'".
inline at::Device CheckedDevice(const std::string& what, const Tensor& tensor) {
  if (!tensor.defined()) Refuse(ErrorCode::kInvalidArgument, what, " is undefined");
  if (tensor.device().is_cpu() || tensor.device().is_cuda()) return tensor.device();
  Refuse(
      ErrorCode::kUnavailable, what, " lies on ", tensor.device(),
      "; expected the CPU or a GPU of CUDA's: no backend here reaches other memory");
}

/// Into which this thread's operations on a GPU are enqueued.
inline c10::Stream CurrentStream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// What is enqueued into `later` from now on comes after what is in `earlier`. The host does not
/// wait.
inline void Order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

/// The stream of a GPU that is dtrun's, and CUDA's name of it. From 2.11 on, LibTorch says what the
/// current stream is; before, that is known of the default one alone.
template <typename Stream, typename = void>
struct KnownStream {
  static Stream Of(const Stream& current) {
    return c10::impl::VirtualGuardImpl(current.device_type()).getDefaultStream(current.device());
  }
  static void* NameOf(const Stream&) { return nullptr; }
};
template <typename Stream>
struct KnownStream<Stream, std::void_t<decltype(std::declval<const Stream&>().native_handle())>> {
  static Stream Of(const Stream& current) { return current; }
  static void* NameOf(const Stream& stream) { return stream.native_handle(); }
};

/// Where dtrun's part of a trainer's work on a device is enqueued. On the CPU nothing is.
class Lane {
 public:
  explicit Lane(const at::Device& device) : device_(device) {
    if (!device.is_cpu()) stream_ = KnownStream<c10::Stream>::Of(CurrentStream(device));
  }

  const at::Device& device() const { return device_; }

  /// What comes into the lane from now on comes after what this thread has enqueued.
  void Enter() const {
    if (stream_) Order(CurrentStream(device_), *stream_);
  }
  /// What this thread enqueues from now on comes after what is in the lane.
  void Leave() const {
    if (stream_) Order(*stream_, CurrentStream(device_));
  }

  /// Contiguous elements on the device or, without data, a place for them.
  Buffer BufferOf(void* data, int64_t count, DType dtype) const {
    Buffer buffer(data, static_cast<uint64_t>(count), dtype);
    if (!stream_) return buffer;
    buffer.device = device_.index();
    buffer.stream = KnownStream<c10::Stream>::NameOf(*stream_);
    return buffer;
  }

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif

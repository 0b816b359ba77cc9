#ifndef DTRUN_DETAIL_TORCH_TENSORS_H_
#define DTRUN_DETAIL_TORCH_TENSORS_H_

#include <torch/version.h>

static_assert(
    TORCH_VERSION_MAJOR > 1 || (TORCH_VERSION_MAJOR == 1 && TORCH_VERSION_MINOR >= 13),
    "dtrun/torch.h: this LibTorch is too old; expected 1.13 or newer");

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtrun/communicator.h>
#include <dtrun/device_memory.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <dtrun/types.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// The place of tensors, and the streams of GPUs. Internal. This file uses only LibTorch's own
// device interface, so a trainer for the CPU needs no CUDA.

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

/// Returns the device of a tensor, or refuses a device that collectives do not support. `what` is
/// for errors: "parameter 'fc.weight'".
inline at::Device CheckedDevice(const std::string& what, const Tensor& tensor) {
  if (!tensor.defined()) Refuse(ErrorCode::kInvalidArgument, what, " is undefined");
  if (tensor.device().is_cpu() || tensor.device().is_cuda()) return tensor.device();
  Refuse(
      ErrorCode::kUnavailable, what, " lies on ", tensor.device(),
      "; expected the CPU or a CUDA GPU");
}

/// The stream into which this thread enqueues its operations on a GPU.
inline c10::Stream CurrentStream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Makes later work in `later` wait for the present work in `earlier`. The host does not wait.
inline void Order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

/// The stream that dtrun uses on a GPU, and its CUDA handle. From LibTorch 2.11 on, it is the
/// current stream. Earlier versions do not give the current stream's handle, so dtrun uses the
/// default stream.
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

/// The stream into which dtrun enqueues its work on a device. On the CPU there is no stream.
class Lane {
 public:
  explicit Lane(const at::Device& device) : device_(device) {
    if (!device.is_cpu()) stream_ = KnownStream<c10::Stream>::Of(CurrentStream(device));
  }

  const at::Device& device() const { return device_; }

  /// Makes later work in the lane wait for the work that this thread has enqueued.
  void Enter() const {
    if (stream_) Order(CurrentStream(device_), *stream_);
  }
  /// Makes later work of this thread wait for the work in the lane.
  void Leave() const {
    if (stream_) Order(*stream_, CurrentStream(device_));
  }

  /// Contiguous elements on the device. With null data, a place for them.
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

/// Returns true for LibTorch types that have a DType, and sets `*dtype`.
inline bool FindDType(at::ScalarType type, DType* dtype) {
  static const std::map<at::ScalarType, DType> kTypes = {
      {at::kByte, DType::kU8},   {at::kChar, DType::kI8},       {at::kShort, DType::kI16},
      {at::kInt, DType::kI32},   {at::kLong, DType::kI64},      {at::kHalf, DType::kF16},
      {at::kFloat, DType::kF32}, {at::kBFloat16, DType::kBF16}, {at::kDouble, DType::kF64},
      {at::kBool, DType::kBool},
  };
  const auto found = kTypes.find(type);
  if (found == kTypes.end()) return false;
  *dtype = found->second;
  return true;
}

inline DType CheckedDType(const std::string& what, const Tensor& tensor) {
  DType dtype = DType::kF32;
  if (FindDType(tensor.scalar_type(), &dtype)) return dtype;
  Refuse(
      ErrorCode::kInvalidArgument, what, " has elements of type ", tensor.scalar_type(),
      "; expected f16, bf16, f32, f64, bool or integers");
}

/// A tensor as contiguous memory for a collective: the tensor's own memory, or a copy. Call
/// Finish() after the collective: it copies the result back.
class Staged {
 public:
  Staged(const std::string& what, const Tensor& tensor)
      : tensor_(tensor), lane_(CheckedDevice(what, tensor)) {
    if (tensor.layout() != at::kStrided) {
      Refuse(
          ErrorCode::kInvalidArgument, what, " has layout ", tensor.layout(),
          "; expected a dense one");
    }
    const DType dtype = CheckedDType(what, tensor);
    staged_ = tensor.detach().contiguous();
    buffer_ = lane_.BufferOf(staged_.data_ptr(), staged_.numel(), dtype);
    lane_.Enter();
  }

  const Buffer& buffer() const { return buffer_; }
  const Lane& lane() const { return lane_; }

  void Finish() {
    lane_.Leave();
    if (staged_.data_ptr() == tensor_.data_ptr()) return;
    ::torch::NoGradGuard no_grad;
    tensor_.copy_(staged_);
  }

 private:
  Tensor tensor_, staged_;
  Lane lane_;
  Buffer buffer_;
};

/// For example "fc.weight [10, 64]". If the memory is not row-major, the text has the strides.
inline std::string Describe(const std::string& name, const Tensor& tensor) {
  if (tensor.is_contiguous()) return Text(name, " ", tensor.sizes());
  return Text(name, " ", tensor.sizes(), " strides ", tensor.strides());
}

/// "rank 1" or "ranks 0, 2"
inline std::string RankList(const std::vector<size_t>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) list += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return list;
}

/// Collective: throws kMismatch on all ranks unless all ranks have the same lines. The error names
/// the first line that differs, and the ranks.
inline void AgreeOn(
    Communicator& communicator, const std::string& what, const std::vector<std::string>& lines) {
  std::string listing;
  for (const std::string& line : lines) listing += line + '\n';
  std::vector<std::istringstream> texts;
  for (const std::string& text : AllGatherBytes(communicator, listing)) texts.emplace_back(text);
  for (size_t i = 0;; ++i) {
    std::map<std::string, std::vector<size_t>> sides;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      std::string line;
      if (!std::getline(texts[rank], line)) line = "nothing";
      sides[line].push_back(rank);
    }
    if (sides.size() == 1) {
      if (sides.begin()->first == "nothing") return;
      continue;
    }
    std::string found;
    for (const auto& side : sides)
      found += (found.empty() ? "" : ", ") + side.first + " on " + RankList(side.second);
    Refuse(ErrorCode::kMismatch, what, ": the ranks differ in tensor ", i, ": ", found);
  }
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

inline void BroadcastAll(Communicator& communicator, const NamedTensors& tensors, int root) {
  std::vector<Staged> staged;
  std::vector<Work> works;
  for (const auto& named : tensors) {
    staged.emplace_back(Text("broadcast: '", named.first, "'"), named.second);
    works.push_back(communicator.StartBroadcast(staged.back().buffer(), root));
  }
  for (Work& work : works) work.Wait();
  for (Staged& one : staged) one.Finish();
}

inline NamedTensors BuffersOf(const ::torch::nn::Module& module) {
  NamedTensors buffers;
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) buffers.emplace_back(item.key(), item.value());
  return buffers;
}

}  // namespace internal

/// Makes the parameters and buffers of `module` on all ranks equal to those of rank `root`.
/// Collective. kMismatch names the first difference between the ranks' models. A
/// DistributedOptimizer with a module does this in its constructor.
inline void BroadcastParameters(
    Communicator& communicator, const ::torch::nn::Module& module, int root = 0) {
  internal::NamedTensors tensors;
  for (const auto& item : module.named_parameters())
    if (item.value().defined()) tensors.emplace_back(item.key(), item.value());
  for (const auto& buffer : internal::BuffersOf(module)) tensors.push_back(buffer);
  std::vector<std::string> lines;
  for (const auto& named : tensors) {
    lines.push_back(
        internal::Text("'", named.first, "' ", named.second.scalar_type(), named.second.sizes()));
  }
  internal::AgreeOn(communicator, "broadcast_parameters", lines);
  internal::BroadcastAll(communicator, tensors, root);
}

/// A tensor on a GPU that collectives use repeatedly. Registration has no effect since dtrun 0.2:
/// collectives treat all memory of a GPU alike. The class stays for programs that use it. The
/// object keeps the tensor alive.
class RegisteredTensor {
 public:
  /// Collective. All ranks pass tensors of the same device type. Throws kInvalidArgument if the
  /// tensor is not contiguous, because collectives would use a copy of it.
  RegisteredTensor(Communicator& communicator, const Tensor& tensor) : tensor_(tensor) {
    const at::Device device = internal::CheckedDevice("register: the tensor", tensor);
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous())
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "register: the tensor is not contiguous; expected a contiguous tensor, because "
          "collectives copy other tensors");
    if (device.is_cpu()) return;
    memory_.emplace(communicator, device.index(), tensor.data_ptr(), tensor.nbytes());
  }

  /// The tensor that was passed to the constructor.
  const Tensor& tensor() const { return tensor_; }
  /// Always "".
  std::string obstacle() const { return memory_ ? memory_->obstacle() : ""; }

 private:
  Tensor tensor_;
  std::optional<RegisteredMemory> memory_;
};

}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_TENSORS_H_

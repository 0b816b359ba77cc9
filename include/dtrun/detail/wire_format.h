#ifndef DTRUN_DETAIL_WIRE_FORMAT_H_
#define DTRUN_DETAIL_WIRE_FORMAT_H_

#include <dtrun/c.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace dtrun {

/// What the buckets of a reducer look like while they are reduced.
enum class Wire : int32_t {
  kNone = DTRUN_WIRE_NONE,  ///< as they are
  kF16 = DTRUN_WIRE_F16,    ///< f32 and f64, rounded to f16; the result has the gradient's dtype
  kBF16 = DTRUN_WIRE_BF16,  ///< likewise
};

/// A format of your own for buckets of f32 and f64: each rank compresses its gradients, what comes
/// out is reduced element by element (with the reducer's operation and scale, in the arithmetic of
/// `dtype()`), and each rank decompresses the result. All ranks use formats of the same name and
/// dtype.
///
/// Buckets are numbered from 0. `gradients` is the bucket: gradients in a row, each followed by
/// elements up to the next 64 bytes, which are zeros unless Decompress has written others. State
/// may be kept by bucket, such as what compression lost, to be added in the next step; a format
/// serves one reducer.
///
/// Called on the thread that calls the reducer. What it throws comes out of that call; the reducer
/// is then of no more use on this rank, and the other ranks get kTimeout or kPeerLost.
class WireFormat {
 public:
  virtual ~WireFormat() = default;
  virtual std::string name() const = 0;
  /// Of an element on the wire.
  virtual DType dtype() const = 0;
  /// Elements on the wire; `gradients` has no data. Called for each bucket, in their order, when
  /// the reducer is made, and again when the first step has ended and buckets have changed: what
  /// was kept for a bucket belongs to others then.
  virtual uint64_t Count(size_t bucket, const Buffer& gradients) = 0;
  virtual void Compress(size_t bucket, const Buffer& gradients, const Buffer& wire) = 0;
  virtual void Decompress(size_t bucket, const Buffer& wire, const Buffer& gradients) = 0;
};

namespace detail {

/// A WireFormat as the C ABI calls it. No exception crosses that: it waits here.
class WireFunctions {
 public:
  explicit WireFunctions(std::shared_ptr<WireFormat> format)
      : format_(std::move(format)), name_(format_->name()) {
    functions_.name = name_.c_str();
    functions_.dtype = static_cast<int32_t>(format_->dtype());
    functions_.reserved = 0;
    functions_.context = this;
    functions_.count = [](void* context, uint64_t bucket, dtrun_buffer gradients,
                          uint64_t* wire_count) {
      return Call(context, [&](WireFormat& own) {
        *wire_count = own.Count(static_cast<size_t>(bucket), FromC(gradients));
      });
    };
    functions_.compress = [](void* context, uint64_t bucket, dtrun_buffer gradients,
                             dtrun_buffer wire) {
      return Call(context, [&](WireFormat& own) {
        own.Compress(static_cast<size_t>(bucket), FromC(gradients), FromC(wire));
      });
    };
    functions_.decompress = [](void* context, uint64_t bucket, dtrun_buffer wire,
                               dtrun_buffer gradients) {
      return Call(context, [&](WireFormat& own) {
        own.Decompress(static_cast<size_t>(bucket), FromC(wire), FromC(gradients));
      });
    };
  }
  WireFunctions(const WireFunctions&) = delete;
  WireFunctions& operator=(const WireFunctions&) = delete;

  const dtrun_wire_format* functions() const { return &functions_; }

  /// Throws what the format has thrown, or the error.
  void Check(dtrun_error* error) const {
    if (error != nullptr && thrown_ != nullptr) {
      dtrun_error_destroy(error);
      std::rethrow_exception(thrown_);
    }
    detail::Check(error);
  }

 private:
  template <typename Body>
  static int32_t Call(void* context, const Body& body) noexcept {
    auto* self = static_cast<WireFunctions*>(context);
    try {
      body(*self->format_);
      return 0;
    } catch (...) {
      self->thrown_ = std::current_exception();
      return 1;
    }
  }

  std::shared_ptr<WireFormat> format_;
  std::string name_;
  dtrun_wire_format functions_ = {};
  std::exception_ptr thrown_;
};

}  // namespace detail
}  // namespace dtrun

#endif

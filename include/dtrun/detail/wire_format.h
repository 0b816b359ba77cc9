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

/// The format of buckets while they are reduced.
enum class Wire : int32_t {
  kNone = DTRUN_WIRE_NONE,  ///< unchanged
  kF16 = DTRUN_WIRE_F16,    ///< f32 and f64, rounded to f16; the result has the gradient's dtype
  kBF16 = DTRUN_WIRE_BF16,  ///< the same with bf16
};

/// A user-defined wire format for buckets of f32 and f64. Each rank compresses its gradients. The
/// compressed elements are reduced one by one, with the reducer's operation and scale, in the
/// arithmetic of `dtype()`. Each rank decompresses the result. All ranks use formats with the same
/// name and dtype.
///
/// Buckets are numbered from 0. `gradients` is the bucket: gradients in a row, each padded to a
/// multiple of 64 bytes. The padding is zero unless Decompress has written to it. A format may keep
/// state by bucket, for example the error of compression, to add it in the next step. A format
/// serves one reducer.
///
/// The functions run on the thread that calls the reducer. An exception of a function comes out of
/// that call. This rank's reducer is then unusable, and the other ranks get kTimeout or kPeerLost.
class WireFormat {
 public:
  virtual ~WireFormat() = default;
  /// The name, which is compared between the ranks.
  virtual std::string name() const = 0;
  /// The type of an element on the wire.
  virtual DType dtype() const = 0;
  /// Returns the number of elements on the wire. `gradients` has no data. Called for each bucket in
  /// order when the reducer is created, and again whenever the buckets have changed. A change makes
  /// all state kept for a bucket invalid.
  virtual uint64_t Count(size_t bucket, const Buffer& gradients) = 0;
  /// Compresses `gradients` into `wire`, which has the number of elements from Count.
  virtual void Compress(size_t bucket, const Buffer& gradients, const Buffer& wire) = 0;
  /// Decompresses the reduced elements in `wire` into `gradients`.
  virtual void Decompress(size_t bucket, const Buffer& wire, const Buffer& gradients) = 0;
};

namespace detail {

/// Adapts a WireFormat to the C ABI. Exceptions do not cross the C ABI: they are stored here.
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

  /// Throws the stored exception of the format, or the error.
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

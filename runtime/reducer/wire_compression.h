#ifndef DTRUN_RUNTIME_REDUCER_WIRE_COMPRESSION_H_
#define DTRUN_RUNTIME_REDUCER_WIRE_COMPRESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// The format of buckets while they are reduced. Each rank compresses its buckets of f32 and f64.
/// The compressed elements are reduced one by one, and the result is decompressed. A format may
/// keep state per bucket.
class WireFormat {
 public:
  virtual ~WireFormat() = default;
  /// For people and for comparison between ranks: "f16", "format 'signs' of i8".
  virtual std::string description() const = 0;
  virtual DType dtype() const = 0;
  /// The number of elements of the bucket on the wire. `gradients` has no data. Called for each
  /// bucket, in order, when a plan is made. Then the state of all buckets begins anew.
  virtual uint64_t Count(size_t bucket, const Buffer& gradients) = 0;
  virtual void Compress(size_t bucket, const Buffer& gradients, const Buffer& wire) = 0;
  virtual void Decompress(size_t bucket, const Buffer& wire, const Buffer& gradients) = 0;
  /// True if element k on the wire is element k of the gradients. Then a bucket may come in pieces.
  virtual bool IsElementwise() const { return false; }
};

/// Creates a format that rounds to f16 or bf16 and converts back. It rounds to nearest, ties to
/// even.
std::shared_ptr<WireFormat> CreateCast(DType wire);

/// True if buckets of this dtype are compressed.
bool IsCompressed(DType dtype);

/// True if the format's elements are floats, like the flags.
bool CarriesFlags(const WireFormat& format);

}  // namespace dtrun::runtime

#endif

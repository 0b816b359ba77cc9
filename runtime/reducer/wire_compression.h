#ifndef DTRUN_RUNTIME_REDUCER_WIRE_COMPRESSION_H_
#define DTRUN_RUNTIME_REDUCER_WIRE_COMPRESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// What the buckets of a reducer look like while they are reduced, if not as they are: buckets of
/// f32 and f64 are compressed on each rank, what comes out is reduced element by element, and the
/// result is decompressed. May keep state for each bucket.
class WireFormat {
 public:
  virtual ~WireFormat() = default;
  /// For people, and compared between the ranks: "f16", "format 'signs' of i8".
  virtual std::string description() const = 0;
  virtual DType dtype() const = 0;
  /// Elements on the wire for the bucket (`gradients` has no data). Called for each bucket, in
  /// their order, when a plan is made: the state of buckets begins anew.
  virtual uint64_t Count(size_t bucket, const Buffer& gradients) = 0;
  virtual void Compress(size_t bucket, const Buffer& gradients, const Buffer& wire) = 0;
  virtual void Decompress(size_t bucket, const Buffer& wire, const Buffer& gradients) = 0;
  /// Element k on the wire is element k of the gradients, so that a bucket may come in pieces.
  virtual bool IsElementwise() const { return false; }
};

/// Rounds to f16 or bf16, to nearest, ties to even, and back.
std::shared_ptr<WireFormat> CreateCast(DType wire);

/// Whether a bucket of this dtype is compressed.
bool IsCompressed(DType dtype);

/// Whether the format's elements are floats, as the flags are.
bool CarriesFlags(const WireFormat& format);

}  // namespace dtrun::runtime

#endif

#ifndef DTRUN_TESTS_CONFORMANCE_SHAPE_H_
#define DTRUN_TESTS_CONFORMANCE_SHAPE_H_

#include <cstdint>
#include <string>

#include "dtrun/types.h"
#include "tests/conformance/ranks.h"
#include "tests/conformance/reference.h"

namespace dtrun::testing {

/// Whether the kind combines the elements of the ranks with a ReduceOp.
bool Combines(Kind kind);

/// The memory of buffers: private to the process, from Allocate, or a mixture of both.
enum class Placement { kPrivate, kMapped, kMixed };

/// One collective over all ranks. From these values, every rank can compute the input and the
/// output of every other rank.
struct Shape {
  Kind kind = Kind::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale = {};
  int root = 0;
  uint64_t count = 0;    ///< of the whole, if a rank has the whole; otherwise of a rank's part
  bool by_rank = false;  ///< parts of different sizes, given as counts by rank
  bool in_place = false;
  Placement placement = Placement::kPrivate;
  Values values = Values::kExact;
  uint64_t seed = 1;
};

/// "all_reduce (f32, 7 elements, sum, in place, private memory), seed 5"
std::string Describe(const Shape& shape);

/// The part of one rank in a Shape.
class Part {
 public:
  Part(const Shape& shape, int rank, int size) : shape_(shape), rank_(rank), size_(size) {}

  bool has_input() const;
  bool has_output() const;
  uint64_t input_count() const;
  uint64_t output_count() const;
  Counts send_counts() const;
  Counts receive_counts() const;
  /// Whether one buffer lies inside the other, and where the smaller buffer begins in the larger
  /// one.
  bool in_place() const;
  uint64_t offset() const;

  Bytes Input() const;
  Bytes ExpectedOutput() const;

 private:
  // The number of elements from `source` to `destination`, and where they begin in the input of
  // `source`.
  uint64_t Moved(int source, int destination) const;
  uint64_t Begin(int source, int destination) const;
  uint64_t Piece(int a, int b) const;
  Counts Shares() const;
  Bytes InputOf(int rank, uint64_t first, uint64_t count) const;

  const Shape& shape_;
  int rank_, size_;
};

}  // namespace dtrun::testing

#endif

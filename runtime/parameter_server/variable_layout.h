#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_LAYOUT_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "runtime/checkpoint/tensor.h"

namespace dtrun::runtime {

/// Elements [first, first + count) of a variable, which one server holds: whole rows of its first
/// axis.
struct VariableShard {
  size_t variable = 0;
  uint64_t first = 0, count = 0;
  int part = 0, parts = 1;  ///< of those that the variable is cut into
  int server = 0;
  uint64_t offset = 0;  ///< bytes from the beginning of a block to the first element

  bool operator==(const VariableShard&) const = default;
};

/// Where every variable lies: which server holds which part of it, and where in a block. A block is
/// the memory of a connection between a rank and a server: the gradients of all variables, then
/// their values. Every process of a job plans the same.
struct VariableLayout {
  std::vector<VariableShard> shards;  ///< by variable, then by row
  std::vector<uint64_t> offsets;      ///< by variable: bytes from the beginning of a block
  uint64_t half = 0;                  ///< bytes of all gradients, and where the values begin
  std::string description;            ///< what has to be the same in all processes, in lines

  uint64_t block_bytes() const { return 2 * half; }
  std::vector<VariableShard> OfServer(int server) const;
};

/// Variables are dealt to the servers round-robin, in their order. One of at least twice
/// `min_partition_bytes` is cut along its first axis first, into parts of at least that size, as
/// many as there are servers at most, of which the first ones have a row more ("div"):
///
///   13 rows, 5 servers   ->   3, 3, 3, 2, 2
///
/// Throws Error kInvalidArgument for no variable, two of a name, one whose shape does not fit its
/// count, or one outside host memory.
VariableLayout PlanVariables(
    const std::vector<Tensor>& variables, int servers, uint64_t min_partition_bytes);

}  // namespace dtrun::runtime

#endif

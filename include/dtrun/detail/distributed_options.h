#ifndef DTRUN_DETAIL_DISTRIBUTED_OPTIONS_H_
#define DTRUN_DETAIL_DISTRIBUTED_OPTIONS_H_

#include <dtrun/detail/wire_format.h>
#include <dtrun/error.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dtrun {

/// The options of a DistributedOptimizer. All ranks pass the same options, otherwise kMismatch.
struct DistributedOptions {
  /// kAverage, or kSum if the loss is already divided by the global batch, or kAdasum.
  ///
  /// With kAdasum, gradients are not reduced. The inner optimizer of each rank steps with the
  /// rank's own gradients, and each rank has its own optimizer state. Then the ranks combine the
  /// changes of their parameters by adaptive summation (see dtrun_named_operation). The loss is
  /// divided by the rank's own batch. The number of ranks is a power of two. Parameters are f32 or
  /// f64, and the same on all ranks from the start. Options that clip, predivide, group or compress
  /// gradients are not allowed. Changes of parameters on a GPU go through host memory.
  ReduceOp op = ReduceOp::kAverage;
  /// The size of a bucket: a bucket's reduction starts when all of the bucket is complete. 0: the
  /// option `bucket_bytes`.
  uint64_t bucket_bytes = 0;
  /// The number of backward passes before a step. The trainer's backward adds to the gradients, as
  /// in one process. They are reduced once, in the last pass, and `ZeroGradients()` clears them.
  int backward_passes_per_step = 1;
  /// True: the step uses the average of the passes instead of their sum, at no extra cost.
  bool average_aggregated_gradients = false;
  /// For kAverage: gradients are divided by this factor before the sum, and by number of ranks /
  /// factor after the sum. This keeps sums in 16 bits in range. In [1/1024, 1024].
  double gradient_predivide_factor = 1;
  /// The largest norm of all reduced gradients together: larger gradients are clipped. 0: no
  /// clipping. The gradients are f32 or f64.
  double max_gradient_norm = 0;
  /// Parameters that each rank keeps for itself: their gradients are not reduced.
  std::vector<std::string> local_parameters = {};
  /// Checks every step with a number that is a multiple of this; 0: no check. The check finds
  /// gradients that are infinite or NaN, and parameters that differ between ranks. Either is
  /// kMismatch on all ranks, with the first such parameter, the ranks and the step. On a GPU, the
  /// check waits for the backward pass, and values are compared in host memory.
  int check_every = 0;
  /// True: gradients by rows are added to a whole gradient and reduced as other gradients. False:
  /// the rows of all ranks are gathered.
  bool sparse_as_dense = false;
  /// The size of the first bucket that a backward pass fills. 0: 1 MiB, or `bucket_bytes` if that
  /// is less.
  uint64_t first_bucket_bytes = 0;
  /// Lists of parameter names. The gradients of a list have one dtype and are reduced together, in
  /// one bucket of any size.
  std::vector<std::vector<std::string>> groups = {};
  /// An alternative to `groups`: deals all parameters, in their order, to this many groups. 0: use
  /// `groups`. kInvalidArgument: both are set.
  size_t equal_groups = 0;
  /// The wire format of f32 and f64 gradients. Gradients on a GPU then go through host memory: a
  /// mark that starts a bucket waits for the backward pass so far.
  Wire wire = Wire::kNone;
  /// A user-defined wire format, instead of `wire`.
  std::shared_ptr<WireFormat> wire_format = nullptr;
  /// True: after the first step, the buckets follow the order in which rank 0 marked gradients.
  bool rebuild = true;
};

namespace detail {

/// Returns true if the ranks combine the changes of parameters instead of gradients.
inline bool CombinesDeltas(const DistributedOptions& options) {
  return options.op == ReduceOp::kAdasum;
}

/// Returns the indices of the parameters that all ranks share. Throws if a local parameter does not
/// exist.
inline std::vector<size_t> SharedOf(
    const std::vector<Parameter>& parameters, const DistributedOptions& options) {
  const auto& local = options.local_parameters;
  for (const std::string& name : local)
    if (std::none_of(parameters.begin(), parameters.end(), [&](const Parameter& parameter) {
          return parameter.name == name;
        }))
      throw Error(
          ErrorCode::kInvalidArgument,
          "local_parameters: the optimizer has no parameter '" + name + "'");
  std::vector<size_t> shared;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (std::find(local.begin(), local.end(), parameters[i].name) == local.end())
      shared.push_back(i);
  return shared;
}

/// Returns the shared parameters with gradients that are reduced.
inline std::vector<size_t> ReducedOf(
    const std::vector<Parameter>& parameters, const DistributedOptions& options) {
  if (CombinesDeltas(options)) return {};
  return SharedOf(parameters, options);
}

/// Returns the groups as indices of parameters. Throws if a parameter is not in `reduced`.
inline std::vector<std::vector<size_t>> GroupsOf(
    const std::vector<Parameter>& parameters, const std::vector<size_t>& reduced,
    const DistributedOptions& options) {
  std::vector<std::vector<size_t>> groups;
  for (const std::vector<std::string>& names : options.groups) {
    groups.emplace_back();
    for (const std::string& name : names) {
      const auto found = std::find_if(
          reduced.begin(), reduced.end(), [&](size_t i) { return parameters[i].name == name; });
      if (found == reduced.end())
        throw Error(
            ErrorCode::kInvalidArgument,
            "groups: the optimizer reduces no parameter '" + name + "'");
      groups.back().push_back(*found);
    }
  }
  return groups;
}

/// Returns the reducer's options, without the groups. With a predivide factor, the average over the
/// ranks becomes a sum between two factors.
inline ReducerOptions ReducerOptionsOf(int size, const DistributedOptions& options) {
  ReducerOptions told;
  told.op = CombinesDeltas(options) ? ReduceOp::kSum : options.op;
  told.bucket_bytes = options.bucket_bytes;
  told.first_bucket_bytes = options.first_bucket_bytes;
  told.equal_groups = options.equal_groups;
  told.wire = options.wire;
  told.wire_format = options.wire_format;
  told.rebuild = options.rebuild;
  if (options.average_aggregated_gradients && options.backward_passes_per_step > 0)
    told.scale.after = 1.0 / options.backward_passes_per_step;
  const double predivide = options.gradient_predivide_factor;
  if (predivide == 1 || options.op != ReduceOp::kAverage || !(predivide > 0)) return told;
  told.op = ReduceOp::kSum;
  told.scale = {1 / predivide, predivide / size * told.scale.after};
  return told;
}

/// Checks the options and parameters for adasum. Throws kInvalidArgument.
template <typename Refuse>
void CheckDeltaOptions(
    const DistributedOptions& options, const std::vector<Parameter>& parameters,
    const std::vector<size_t>& shared, const Refuse& refuse) {
  const char* other = nullptr;
  if (options.average_aggregated_gradients) other = "average_aggregated_gradients";
  if (options.max_gradient_norm > 0) other = "max_gradient_norm";
  if (!options.groups.empty()) other = "groups";
  if (options.equal_groups > 0) other = "equal_groups";
  if (options.wire != Wire::kNone || options.wire_format != nullptr) other = "wire";
  if (other != nullptr)
    refuse(
        std::string("the reduce op is adasum, which reduces no gradients, with ") + other +
        "; expected average or sum, or no such option");
  for (const size_t i : shared) {
    const DType dtype = parameters[i].value.dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64)
      refuse(
          "the reduce op is adasum and parameter '" + parameters[i].name + "' is " + NameOf(dtype) +
          "; expected f32 or f64");
  }
}

/// Checks every option, with the `shared` parameters. Throws kInvalidArgument.
inline void CheckOptions(
    const DistributedOptions& options, const std::vector<Parameter>& parameters,
    const std::vector<size_t>& shared) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, "DistributedOptimizer: " + text);
  };
  for (const Parameter& parameter : parameters) {
    const Buffer& value = parameter.value;
    const Buffer& gradient = parameter.gradient;
    if (gradient.data != nullptr &&
        (gradient.count != value.count || gradient.dtype != value.dtype))
      refuse(
          "the gradient of '" + parameter.name + "' is " + NameOf(gradient.dtype) + "[" +
          std::to_string(gradient.count) + "]; expected the count and dtype of the value, " +
          NameOf(value.dtype) + "[" + std::to_string(value.count) + "]");
  }
  if (CombinesDeltas(options))
    CheckDeltaOptions(options, parameters, shared, refuse);
  else if (options.op != ReduceOp::kAverage && options.op != ReduceOp::kSum)
    refuse(
        std::string("the reduce op is ") + NameOf(options.op) +
        "; expected average, sum or adasum");
  if (options.backward_passes_per_step < 1)
    refuse(
        "backward_passes_per_step is " + std::to_string(options.backward_passes_per_step) +
        "; expected 1 or more");
  if (options.gradient_predivide_factor != 1 && options.op != ReduceOp::kAverage)
    refuse("gradient_predivide_factor needs the reduce op average");
  if (!(options.gradient_predivide_factor > 0))
    refuse(
        "gradient_predivide_factor is " + std::to_string(options.gradient_predivide_factor) +
        "; expected more than 0");
  if (!(options.max_gradient_norm >= 0))
    refuse(
        "max_gradient_norm is " + std::to_string(options.max_gradient_norm) +
        "; expected 0 or more");
  if (options.check_every < 0)
    refuse("check_every is " + std::to_string(options.check_every) + "; expected 0 or more");
  if (!options.groups.empty() && options.equal_groups > 0)
    refuse("groups and equal_groups are given; expected one of them");
  for (const size_t i : shared) {
    const DType dtype = parameters[i].value.dtype;
    if (options.max_gradient_norm > 0 && dtype != DType::kF32 && dtype != DType::kF64)
      refuse(
          "max_gradient_norm: parameter '" + parameters[i].name + "' is " + NameOf(dtype) +
          "; expected f32 or f64");
  }
}

/// Returns the options that the plan of the reduction does not compare, as text.
inline std::string TextOf(
    const DistributedOptions& options, const std::vector<Parameter>& parameters) {
  std::string text =
      "backward_passes_per_step " + std::to_string(options.backward_passes_per_step) +
      ", average_aggregated_gradients " +
      (options.average_aggregated_gradients ? "true" : "false") + ", max_gradient_norm " +
      std::to_string(options.max_gradient_norm) + ", check_every " +
      std::to_string(options.check_every) + ", gradient_predivide_factor " +
      std::to_string(options.gradient_predivide_factor);
  if (options.sparse_as_dense) text += ", sparse_as_dense";
  if (CombinesDeltas(options)) text += ", adasum";
  for (const std::string& name : options.local_parameters) text += ", local '" + name + "'";
  for (const Parameter& parameter : parameters) {
    if (parameter.row_length > 0)
      text += ", '" + parameter.name + "' in rows of " + std::to_string(parameter.row_length);
    if (!parameter.requires_gradient) text += ", frozen '" + parameter.name + "'";
  }
  return text;
}

}  // namespace detail
}  // namespace dtrun

#endif

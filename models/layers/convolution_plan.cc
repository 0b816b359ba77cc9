// oneDNN's forward primitive chooses the format of the output, and the backward primitives get that
// format. For some formats, oneDNN has only reference code, which is a hundred times slower, and
// oneDNN does not report it. Therefore the planner asks each direction for the names of its
// implementations. It first tries the formats of the tensors, then other formats with reorders
// before and after the primitive. It chooses the combination with the lowest estimated cost.

#include "models/layers/convolution_plan.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/cpu_kernels.h"
#include "models/message_text.h"
#include "models/onednn/onednn.h"

namespace dtrun::models {
namespace {

using dnnl::memory;

// Rough speeds of one core. Only their ratios matter, and the ratios are large.
constexpr double kReorderedBytesPerCycle = 4, kReferenceFlopsPerCycle = 0.05;
// Share of the peak that the kernel for few channels reaches. It loads a value for every product.
constexpr double kOwnShare = 0.4;
// Share of the peak that GEMM on unfolded inputs reaches for large matrices. If the smallest side
// is far below kGemmSide, GEMM reaches only a small part of it.
constexpr double kGemmShare = 0.9, kGemmSide = 40;
// A batch-reduced GEMM multiplies row by row. If a row has fewer pixels than this, it waits for the
// weights. Convolutions of 512 x 512 channels on 4 x 4 pixels take 18 ms with it and 10 ms without.
constexpr double kBatchReducedRow = 8;
constexpr int kMostChannelsOfAnImage = 4;
// If padding the channels to whole vectors costs at most this factor, no other formats are tried.
constexpr double kAcceptedWaste = 1.25;

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Peak of one core for the instruction set in `name`: lanes, times 2 operations of a fused
// multiply-add, times 2 units. AVX and SSE4.1 have no fused multiply-add.
double FlopsPerCycleOf(const std::string& name) {
  if (Contains(name, "avx512") || Contains(name, "AVX512") || Contains(name, "avx10")) return 64;
  if (Contains(name, "avx2") || Contains(name, "AVX2")) return 32;
  if (Contains(name, "avx") || Contains(name, "AVX")) return 16;
  return 8;
}

// `side` is the smallest side of the matrices that a GEMM would multiply. `row` is the number of
// pixels in a row of the output.
double FlopsPerCycle(const std::string& implementation, double side, double row) {
  if (IsReference(implementation)) return kReferenceFlopsPerCycle;
  const bool names_isa = Contains(implementation, "avx") || Contains(implementation, "sse");
  const double peak = FlopsPerCycleOf(names_isa ? implementation : onednn::InstructionSet());
  if (Contains(implementation, "brg")) return peak * std::min(1.0, row / kBatchReducedRow);
  const bool gemm = Contains(implementation, "gemm");
  return gemm ? peak * kGemmShare * (1 - std::exp(-side / kGemmSide)) : peak;
}

double Elements(const memory::desc& description) {
  double count = 1;
  for (const memory::dim dim : onednn::DimsOf(description)) count *= static_cast<double>(dim);
  return count;
}

class Planner {
 public:
  Planner(const dnnl::engine& engine, const ConvolutionProblem& problem)
      : engine_(engine), p_(problem), type_(DataTypeOf(problem.dtype)) {
    const auto channels = static_cast<double>(p_.input.channels);
    flops_ = 2.0 * p_.batch * static_cast<double>(p_.output.count()) * channels * p_.size * p_.size;
  }

  ConvolutionPlan Plan() {
    const int favourite = FavouriteBlock();
    ConvolutionPlan best = PlanFor(favourite);
    double least = CostOf(best);
    if (least <= AcceptedCost()) return best;
    for (const int block : {16, 8, p_.output.channels, 1}) {
      if (block == favourite) continue;
      const ConvolutionPlan plan = PlanFor(block);
      const double cost = CostOf(plan) + CostOfOtherFormat(block);
      if (cost >= least) continue;
      least = cost;
      best = plan;
    }
    return best;
  }

 private:
  struct Formats {
    memory::desc source, destination;
  };

  memory::desc Source(int block) const {
    return DescribeActivations(p_.input, block, p_.batch, type_);
  }
  memory::desc Destination(int block) const {
    return DescribeActivations(p_.output, block, p_.batch, type_);
  }
  static memory::desc InAnyFormat(const memory::desc& description) {
    return memory::desc(
        onednn::DimsOf(description), onednn::TypeOf(description), memory::format_tag::any);
  }

  onednn::Convolution Describe(const Formats& formats, memory::data_type weights) const {
    onednn::Convolution convolution;
    convolution.source = formats.source;
    convolution.destination = formats.destination;
    convolution.weights = memory::desc(
        {p_.output.channels, p_.input.channels, p_.size, p_.size}, weights,
        memory::format_tag::any);
    if (p_.bias) {
      convolution.bias =
          memory::desc({p_.output.channels}, memory::data_type::f32, memory::format_tag::a);
    }
    convolution.stride = p_.stride;
    convolution.before = p_.before;
    convolution.after = p_.after;
    return convolution;
  }

  // oneDNN chooses the format. If a Tensor cannot describe the format, channels come last. oneDNN
  // tends to keep the format of the source. An image has few channels, and its format does not
  // predict the speed of the layers behind it. Therefore oneDNN chooses freely for an image.
  int FavouriteBlock() const {
    const bool is_image = p_.input.channels <= kMostChannelsOfAnImage;
    const memory::desc source = Source(p_.input_block);
    const Formats formats = {is_image ? InAnyFormat(source) : source, InAnyFormat(Destination(1))};
    const onednn::ConvolutionForward description =
        DescribeForward(engine_, Describe(formats, type_), onednn::ScratchAttribute(p_.relu));
    if (!onednn::Exists(description) || IsReference(onednn::ImplementationOf(description)))
      return p_.output.channels;
    const int block = BlockOf(description.dst_desc(), p_.output, p_.batch);
    return block == 0 ? p_.output.channels : block;
  }

  // First the formats of the tensors. Then one or both formats as the primitive chooses. Last the
  // two plain formats, in which GEMM works with every instruction set.
  std::vector<Formats> Candidates(int output_block) const {
    const memory::desc source = Source(p_.input_block), destination = Destination(output_block);
    const memory::desc any_source = InAnyFormat(source), any = InAnyFormat(destination);
    return {
        {source, destination},       {source, any},
        {any_source, destination},   {any_source, any},
        {Source(1), Destination(1)}, {Source(p_.input.channels), Destination(p_.output.channels)}};
  }

  double ReorderCost(const memory::desc& has, const memory::desc& wants) const {
    if (has == wants) return 0;
    return static_cast<double>(has.get_size() + wants.get_size()) / kReorderedBytesPerCycle;
  }

  // Products with the padding of weights to whole vectors of channels are wasted.
  double ComputeCost(const std::string& implementation, const memory::desc& weights) const {
    const double bytes = static_cast<double>(memory::data_type_size(onednn::TypeOf(weights)));
    const double waste = static_cast<double>(weights.get_size()) / (Elements(weights) * bytes);
    const double side = std::min(p_.output.channels, p_.input.channels * p_.size * p_.size);
    return flops_ * std::max(waste, 1.0) / FlopsPerCycle(implementation, side, p_.output.width);
  }

  double DirectionCost() const { return flops_ / FlopsPerCycleOf(onednn::InstructionSet()); }

  // The cost of all directions at the speed of the machine, with a little padding.
  double AcceptedCost() const {
    return (p_.input_gradient ? 3 : 2) * kAcceptedWaste * DirectionCost();
  }

  static double CostOf(const ConvolutionPlan& plan) {
    return plan.forward.cost + plan.backward_data.cost + plan.backward_weights.cost;
  }

  // The cost of reorders in both directions: the next layer most likely needs oneDNN's favourite
  // too.
  double CostOfOtherFormat(int block) const {
    return 4 * static_cast<double>(Destination(block).get_size()) / kReorderedBytesPerCycle;
  }

  // `for_each(formats, visit)` visits the implementations of the direction. `formats_of` and
  // `weights_of` return the formats and the weights of a description.
  template <typename Description, typename ForEach, typename FormatsOf, typename WeightsOf>
  ConvolutionWay<Description> Cheapest(
      int output_block, const ForEach& for_each, const FormatsOf& formats_of,
      const WeightsOf& weights_of) const {
    const std::vector<Formats> candidates = Candidates(output_block);
    std::optional<ConvolutionWay<Description>> best;
    const auto good_enough = [&] { return best && best->cost <= kAcceptedWaste * DirectionCost(); };
    for (const Formats& candidate : candidates) {
      if (good_enough()) break;
      for_each(candidate, [&](const Description& description) {
        const std::string name = onednn::ImplementationOf(description);
        const Formats taken = formats_of(description);
        const double cost = ComputeCost(name, weights_of(description)) +
                            ReorderCost(candidates[0].source, taken.source) +
                            ReorderCost(candidates[0].destination, taken.destination);
        if (!best || cost < best->cost) best = {onednn::Copy(description), name, cost};
        return !good_enough();
      });
    }
    if (!best) {
      throw Error(
          ErrorCode::kUnavailable,
          Text("oneDNN ", onednn::Version(), " has no implementation of this convolution"));
    }
    return *best;
  }

  void PlanForward(ConvolutionPlan& plan) const {
    const auto with_relu = [&](bool relu) {
      return Cheapest<onednn::ConvolutionForward>(
          plan.output_block,
          [&](const Formats& formats, const auto& visit) {
            onednn::ForEachForward(
                engine_, Describe(formats, type_), onednn::ScratchAttribute(relu), visit);
          },
          [](const auto& d) {
            return Formats{d.src_desc(), d.dst_desc()};
          },
          [](const auto& d) { return d.weights_desc(); });
    };
    plan.forward = with_relu(p_.relu);
    plan.fuses_relu = p_.relu;
    // The alternative is a separate in-place pass for the ReLU.
    if (!p_.relu || p_.dtype != DType::kF32) return;
    if (plan.forward.cost <= kAcceptedWaste * DirectionCost()) return;
    auto apart = with_relu(false);
    const auto bytes = static_cast<double>(Destination(plan.output_block).get_size());
    apart.cost += 2 * bytes / kReorderedBytesPerCycle;
    if (apart.cost >= plan.forward.cost) return;
    plan.forward = std::move(apart);
    plan.fuses_relu = false;
  }

  void PlanBackward(ConvolutionPlan& plan) const {
    const onednn::ConvolutionForward& forward = plan.forward.description;
    const dnnl::primitive_attr attribute = onednn::ScratchAttribute(false);
    plan.backward_weights = Cheapest<onednn::ConvolutionBackwardWeights>(
        plan.output_block,
        [&](const Formats& formats, const auto& visit) {
          onednn::ForEachBackwardWeights(
              engine_, Describe(formats, memory::data_type::f32), attribute, forward, visit);
        },
        [](const auto& d) {
          return Formats{d.src_desc(), d.diff_dst_desc()};
        },
        [](const auto& d) { return d.diff_weights_desc(); });
    const double own = DirectionCost() / kOwnShare;
    if (own < plan.backward_weights.cost && HasOwnWeightGradient(plan.output_block))
      plan.backward_weights = {{}, kOwnWeightGradient, own};
    if (!p_.input_gradient) return;
    plan.backward_data = Cheapest<onednn::ConvolutionBackwardData>(
        plan.output_block,
        [&](const Formats& formats, const auto& visit) {
          onednn::ForEachBackwardData(engine_, Describe(formats, type_), attribute, forward, visit);
        },
        [](const auto& d) {
          return Formats{d.diff_src_desc(), d.diff_dst_desc()};
        },
        [](const auto& d) { return d.weights_desc(); });
  }

  bool HasOwnWeightGradient(int output_block) const {
    return p_.dtype == DType::kF32 && p_.input_block == p_.input.channels &&
           CanComputeWeightGradient(p_.input.channels, p_.size, output_block);
  }

  ConvolutionPlan PlanFor(int output_block) const {
    ConvolutionPlan plan;
    plan.output_block = output_block;
    PlanForward(plan);
    PlanBackward(plan);
    return plan;
  }

  const dnnl::engine& engine_;
  const ConvolutionProblem& p_;
  memory::data_type type_;
  double flops_ = 0;
};

}  // namespace

bool IsReference(const std::string& implementation) {
  return implementation.rfind("ref", 0) == 0 || implementation.rfind("simple", 0) == 0;
}

ConvolutionPlan PlanConvolution(const dnnl::engine& engine, const ConvolutionProblem& problem) {
  return Planner(engine, problem).Plan();
}

}  // namespace dtrun::models

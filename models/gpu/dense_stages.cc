// Dense layers. Each layer has three products: forward makes the outputs, to_kernel the gradient of
// the kernel, and to_input the gradient of the inputs. An epilogue applies further operations while
// the product is in registers, if this saves passes over memory:
//
//   forward           The epilogue applies bias and ReLU. Dropout is a separate kernel, in place.
//   hidden, backward  The product of the layer behind makes the gradient of this layer's
//                     outputs. Its epilogue applies the backward pass of dropout and ReLU: a mask
//                     of bits says where the gradient passes, and the scale is the dropout's scale.
//                     to_kernel also sums the gradient of the bias, in f32. So dtrun_relu_gradient,
//                     which reads outputs and gradients and writes gradients, is not needed.
//   output, backward  dtrun_loss makes the gradients of the outputs and of the bias in one pass. An
//                     epilogue could not shorten that pass.
//   behind a pool     The pool's winners say where a gradient goes. No epilogue can read winners.
//
// If a layer has no dropout, the forward product writes the mask. Otherwise the dropout kernel
// writes it. cuBLASLt also has an epilogue that masks the gradient and sums the gradient of the
// bias. That epilogue is not used, because it leaves the bias's gradient in the type of the layer's
// gradient.
//
// Some products have no algorithm with an epilogue. Other products are slower with an epilogue: the
// large product with the layer's inputs could lose more time than the separate pass takes. So
// ChooseHiddenProducts times both.

#include <dtrun/error.h>

#include "models/gpu/device_network.h"
#include "models/gpu/kernel_args.h"
#include "models/gpu/trial.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

constexpr char kByEpilogues[] = "cuBLASLt masks its gradient";
constexpr char kByKernel[] = "a kernel masks its gradient";

// The choices of this process. Equal networks use the same choice, so they compute the same bits.
ChoiceCache<HiddenProductsChoice>& HiddenProductsChoices() {
  static auto& choices = *new ChoiceCache<HiddenProductsChoice>;
  return choices;
}

Matrix Flipped(Matrix matrix) {
  matrix.transposed = true;
  return matrix;
}

}  // namespace

std::unique_ptr<Product> DeviceNetwork::MakeProduct(const Product::Options& options) const {
  return std::make_unique<Product>(
      device(), stream_.get(), options, Workspace{workspace_.as<void>(), workspace_.bytes()});
}

std::unique_ptr<Product> DeviceNetwork::ForwardProduct(size_t i, Epilogue epilogue) const {
  const Stage& stage = plan_.stages[i];
  const bool hidden = stage.kind == StageKind::kDense;
  const uint64_t rows = options_.rows, in = stage.input.count(), out = stage.width();
  return MakeProduct(
      {.a = {const_cast<void*>(InputOf(i)), rows, in, options_.dtype},
       .b = {Computed(stage.kernel), in, out, options_.dtype},
       .c = hidden ? Matrix{stages_[i].outputs.as<void>(), rows, out, options_.dtype}
                   : Matrix{logits_.as<void>(), rows, out, DType::kF32},
       .epilogue = epilogue,
       .bias = hidden ? Computed(stage.bias) : Value(stage.bias),
       .mask = stages_[i].mask.as<void>(),
       .tf32 = options_.tf32,
       .selection = options_.selection});
}

std::unique_ptr<Product> DeviceNetwork::KernelGradientProduct(size_t i, Epilogue epilogue) const {
  const Stage& stage = plan_.stages[i];
  const uint64_t rows = options_.rows, in = stage.input.count(), out = stage.width();
  return MakeProduct(
      {.a = Flipped({const_cast<void*>(InputOf(i)), rows, in, options_.dtype}),
       .b = {GradientOf(i), rows, out, options_.dtype},
       .c = {Gradient(stage.kernel), in, out, DType::kF32},
       .epilogue = epilogue,
       .sums = Gradient(stage.bias),
       .tf32 = options_.tf32,
       .selection = options_.selection});
}

// kMasked uses the mask of the layer before.
std::unique_ptr<Product> DeviceNetwork::InputGradientProduct(size_t i, Epilogue epilogue) const {
  const Stage& stage = plan_.stages[i];
  const Stage& before = plan_.stages[i - 1];
  const uint64_t rows = options_.rows, in = stage.input.count(), out = stage.width();
  const bool scales = epilogue == Epilogue::kMasked && before.drops;
  return MakeProduct(
      {.a = {GradientOf(i), rows, out, options_.dtype},
       .b = Flipped({Computed(stage.kernel), in, out, options_.dtype}),
       .c = {GradientOf(i - 1), rows, in, options_.dtype},
       .epilogue = epilogue,
       .mask = stages_[i - 1].mask.as<void>(),
       .scale = scales ? before.dropout.scale : 1,
       .tf32 = options_.tf32,
       .selection = options_.selection});
}

DeviceNetwork::HiddenProducts DeviceNetwork::HiddenProductsOf(size_t i, bool fused) const {
  const bool makes_mask = fused && !plan_.stages[i].drops;
  return {
      ForwardProduct(i, makes_mask ? Epilogue::kBiasReluMask : Epilogue::kBiasRelu),
      KernelGradientProduct(i, fused ? Epilogue::kSums : Epilogue::kNone),
      InputGradientProduct(i + 1, fused ? Epilogue::kMasked : Epilogue::kNone)};
}

void DeviceNetwork::MakeProducts(size_t i) {
  // If the layer before is hidden, that layer's MakeHiddenProducts makes this product.
  if (i > 0 && plan_.stages[i - 1].kind != StageKind::kDense)
    stages_[i].to_input = InputGradientProduct(i, Epilogue::kNone);
  if (plan_.stages[i].kind == StageKind::kDense) return MakeHiddenProducts(i);
  stages_[i].forward = ForwardProduct(i, Epilogue::kBias);
  stages_[i].to_kernel = KernelGradientProduct(i, Epilogue::kNone);
}

void DeviceNetwork::MakeHiddenProducts(size_t i) {
  const Stage& stage = plan_.stages[i];
  // Everything that the choice depends on.
  const std::string layer = Text(
      device().name(), " ", device().multiprocessors(), " ", options_.rows, " ",
      stage.input.count(), " ", stage.width(), " ", plan_.stages[i + 1].width(), " ",
      NameOf(options_.dtype), " ", static_cast<int>(options_.tf32), " ", stage.drops, " ",
      workspace_.bytes(), " ", static_cast<int>(options_.selection));
  stages_[i].hidden_choice =
      options_.fusion == Fusion::kMeasured
          ? HiddenProductsChoices().Get(layer, [&] { return ChooseHiddenProducts(i); })
          : ChooseHiddenProducts(i);
  HiddenProducts products = HiddenProductsOf(i, stages_[i].hidden_choice.is_fused);
  stages_[i].forward = std::move(products.forward);
  stages_[i].to_kernel = std::move(products.to_kernel);
  stages_[i + 1].to_input = std::move(products.next_to_input);
}

HiddenProductsChoice DeviceNetwork::ChooseHiddenProducts(size_t i) {
  if (options_.fusion == Fusion::kNever) return {false, kByKernel};
  HiddenProducts fused;
  try {
    fused = HiddenProductsOf(i, true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    return {false, Text(kByKernel, ": ", error.what())};
  }
  if (options_.fusion == Fusion::kAlways || options_.selection == Selection::kFirst)
    return {true, kByEpilogues};
  const HiddenProducts separate = HiddenProductsOf(i, false);
  const double alone = Milliseconds(i, separate, false), together = Milliseconds(i, fused, true);
  const bool is_faster = together < kChance * alone;
  return {
      is_faster, Text(
                     is_faster ? kByEpilogues : kByKernel, " (", together, " ms in epilogues, ",
                     alone, " ms in a kernel)")};
}

// The time of the work that differs between the two choices.
double DeviceNetwork::Milliseconds(size_t i, const HiddenProducts& products, bool fused) {
  return MillisecondsInGraph(stream_, [&] {
    products.forward->Enqueue();
    products.next_to_input->Enqueue();
    if (!fused) BackwardRelu(i);
    products.to_kernel->Enqueue();
  });
}

void DeviceNetwork::BackwardRelu(size_t i) {
  const Stage& stage = plan_.stages[i];
  const auto width = static_cast<uint32_t>(stage.width());
  Enqueue(
      Typed("dtrun_relu_gradient"),
      {Blocks(uint64_t{options_.rows} * width / 8, kSummingBlocks), kThreads},
      ReluGradientArgs{
          stages_[i].outputs.as<void>(), GradientOf(i), Gradient(stage.bias), partials_.as<float>(),
          counters_.as<uint32_t>() + i, options_.rows, width,
          stage.drops ? stage.dropout.scale : 1});
}

void DeviceNetwork::BackwardDense(size_t i) {
  StageMemory& memory = stages_[i];
  if (plan_.stages[i].kind == StageKind::kDense && !memory.hidden_choice.is_fused) BackwardRelu(i);
  memory.to_kernel->Enqueue();
  if (memory.to_input) memory.to_input->Enqueue();
}

}  // namespace dtrun::models

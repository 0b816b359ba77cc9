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
// If cuBLASLt lacks one of these epilogues for a layer, dtrun_relu_gradient is used there.

#include <dtrun/error.h>

#include "models/gpu/device_network.h"
#include "models/gpu/kernel_args.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

Matrix Flipped(Matrix matrix) {
  matrix.transposed = true;
  return matrix;
}

}  // namespace

std::unique_ptr<Product> DeviceNetwork::MakeProduct(const Product::Options& options) const {
  return std::make_unique<Product>(
      stream_, options, Workspace{workspace_.as<void>(), workspace_.bytes()});
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

void DeviceNetwork::MakeProducts(size_t i) {
  // If the layer before is hidden, UseHiddenProducts makes this product for that layer.
  if (i > 0 && plan_.stages[i - 1].kind != StageKind::kDense)
    stages_[i].to_input = InputGradientProduct(i, Epilogue::kNone);
  if (plan_.stages[i].kind == StageKind::kDense) return MakeHiddenProducts(i);
  stages_[i].forward = ForwardProduct(i, Epilogue::kBias);
  stages_[i].to_kernel = KernelGradientProduct(i, Epilogue::kNone);
}

void DeviceNetwork::MakeHiddenProducts(size_t i) {
  std::string& choice = stages_[i].choice;
  choice = "a kernel masks its gradient";
  if (options_.fusion == Fusion::kNever) return UseHiddenProducts(i, false);
  try {
    UseHiddenProducts(i, true);
    choice = "cuBLASLt masks its gradient";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    UseHiddenProducts(i, false);
    choice += Text(": ", error.what());
  }
}

void DeviceNetwork::UseHiddenProducts(size_t i, bool fused) {
  const bool makes_mask = fused && !plan_.stages[i].drops;
  stages_[i].forward =
      ForwardProduct(i, makes_mask ? Epilogue::kBiasReluMask : Epilogue::kBiasRelu);
  stages_[i].to_kernel = KernelGradientProduct(i, fused ? Epilogue::kSums : Epilogue::kNone);
  stages_[i + 1].to_input =
      InputGradientProduct(i + 1, fused ? Epilogue::kMasked : Epilogue::kNone);
  stages_[i].is_fused = fused;
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
  if (plan_.stages[i].kind == StageKind::kDense && !memory.is_fused) BackwardRelu(i);
  memory.to_kernel->Enqueue();
  if (memory.to_input) memory.to_input->Enqueue();
}

}  // namespace dtrun::models

#include "models/layers/dropout.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>

#include "models/layers/builder.h"
#include "models/layers/for_each_example.h"
#include "models/layers/kernels.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

// 16 bits decide about one element.
constexpr size_t kElementsPerGroup = 2 * kPhiloxGroupWords;
constexpr double kSteps = 65536;

}  // namespace

Dropout::Dropout(double rate) : rate_(rate) {}

std::string Dropout::description() const { return Text("dropout ", rate_); }

LayerSettings Dropout::settings() const { return LayerSettings().Set("rate", rate_); }

Shape Dropout::OutputShape(const Shape& input) const {
  if (!(rate_ >= 0 && rate_ <= 1 - 1 / kSteps)) {
    throw Error(
        ErrorCode::kInvalidArgument, Text("needs a rate of at least 0 and below 1, got ", rate_));
  }
  return input;
}

Tensor* Dropout::BuildForward(Builder& builder, Tensor* input) {
  keep_below_ = static_cast<uint32_t>(std::lround((1 - rate_) * kSteps));
  scale_ = static_cast<float>(kSteps / keep_below_);
  batch_ = builder.batch();
  key_ = KeyOfSeed(builder.seed());
  domain_ = RandomDomain(RandomUse::kDropout, builder.layer_index);
  tensor_ = input;
  mask_stride_ =
      (input->shape.count() + kElementsPerGroup - 1) / kElementsPerGroup * kElementsPerGroup;
  keep_ = builder.NewMemo(size_t(batch_) * mask_stride_);
  return input;
}

void Dropout::Forward(const Pass& pass) {
  if (!pass.training) return;
  ForEachExample(batch_, [&](size_t i) {
    MakeMask(pass, i);
    ApplyTo(tensor_->data, i);
  });
}

void Dropout::BackwardData(const Pass&) {
  ForEachExample(batch_, [&](size_t i) { ApplyTo(tensor_->gradient, i); });
}

// Of the examples' data or gradients, those of one.
void Dropout::ApplyTo(float* values, size_t example) const {
  const size_t at = example * tensor_->stride();
  if (tensor_->dtype == DType::kBF16) {
    Apply(example, As<Bf16>(values) + at);
  } else {
    Apply(example, values + at);
  }
}

void Dropout::MakeMask(const Pass& pass, size_t example) {
  uint8_t* keep = keep_->data + example * mask_stride_;
  PhiloxCounter counter{
      0, pass.first_example + static_cast<uint32_t>(example), static_cast<uint32_t>(pass.step),
      domain_};
  constexpr size_t kGroups = 8;
  alignas(64) uint32_t words[kGroups * kPhiloxGroupWords];
  for (size_t left = mask_stride_ / kElementsPerGroup; left > 0;) {
    const size_t groups = std::min(left, kGroups);
    PhiloxGroups(counter, key_, groups, words);
    KeepBelow(words, groups, keep_below_, keep);
    counter[0] += static_cast<uint32_t>(groups * kPhiloxLanes);
    keep += groups * kElementsPerGroup;
    left -= groups;
  }
}

// The mask is in the plain format: if the tensor is not, its channels are picked group by group.
template <typename Value>
void Dropout::Apply(size_t example, Value* values) const {
  const uint8_t* keep = keep_->data + example * mask_stride_;
  if (tensor_->plain()) return ScaleKept(keep, tensor_->shape.count(), scale_, values);
  const auto channels = size_t(tensor_->shape.channels), block = size_t(tensor_->block);
  for (size_t c = 0; c < channels; c += block) {
    const size_t count = std::min(block, channels - c);
    for (size_t pixel = 0; pixel < tensor_->shape.pixels(); ++pixel, values += block)
      ScaleKept(keep + pixel * channels + c, count, scale_, values);
  }
}

}  // namespace dtrun::models

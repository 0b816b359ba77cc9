#include "models/optim/update_rules.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "models/function_clones.h"
#include "models/message_text.h"
#include "models/optim/rate_optimizer.h"

namespace dtrun::models {
namespace {

// Sums of squares are f64, in this many parts. With the parts, the compiler can vectorise the loop,
// and the sum does not depend on the instruction set.
constexpr size_t kParts = 16;

double TreeSum(const double* parts) {
  double sums[kParts];
  for (size_t i = 0; i < kParts; ++i) sums[i] = parts[i];
  for (size_t width = kParts / 2; width > 0; width /= 2)
    for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  return sums[0];
}

DTRUN_KERNEL_PART float LambUpdate(float m, float v, float value, const LambFactors& f) {
  return m * f.m_correction / (std::sqrt(v * f.v_correction) + f.epsilon) + f.decay * value;
}

}  // namespace

DTRUN_KERNEL void UpdateAdam(
    const float* __restrict gradient, size_t count, const AdamFactors& factors, float* __restrict m,
    float* __restrict v, float* __restrict value) {
  const AdamFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    m[i] += (g - m[i]) * f.m_share;
    v[i] += (g * g - v[i]) * f.v_share;
    value[i] -= f.rate * m[i] / (std::sqrt(v[i]) + f.epsilon) + f.decay * value[i];
  }
}

DTRUN_KERNEL SquaredNorms UpdateLambMoments(
    const float* __restrict gradient, size_t count, const LambFactors& factors, float* __restrict m,
    float* __restrict v, const float* __restrict value) {
  const LambFactors f = factors;
  double updates[kParts] = {}, values[kParts] = {};
  const auto renew = [&](size_t i, size_t part) __attribute__((always_inline)) {
    const float g = gradient[i];
    m[i] += (g - m[i]) * f.m_share;
    v[i] += (g * g - v[i]) * f.v_share;
    const double update = LambUpdate(m[i], v[i], value[i], f), old = value[i];
    updates[part] += update * update;
    values[part] += old * old;
  };
  size_t i = 0;
  for (; i + kParts <= count; i += kParts)
    for (size_t part = 0; part < kParts; ++part) renew(i + part, part);
  for (size_t part = 0; i + part < count; ++part) renew(i + part, part);
  return {TreeSum(updates), TreeSum(values)};
}

DTRUN_KERNEL void ApplyLamb(
    const float* __restrict m, const float* __restrict v, size_t count, const LambFactors& factors,
    float rate, float* __restrict value) {
  const LambFactors f = factors;
  for (size_t i = 0; i < count; ++i) value[i] -= rate * LambUpdate(m[i], v[i], value[i], f);
}

Buffer UpdateDevice::Allocate(uint64_t count, DType dtype, std::shared_ptr<void>& owner) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = (count * SizeOf(dtype) + kAlignment) / kAlignment * kAlignment;
  owner = std::shared_ptr<void>(std::aligned_alloc(kAlignment, bytes), std::free);
  if (owner == nullptr)
    throw Error(ErrorCode::kUnavailable, Text("no memory for ", bytes, " bytes"));
  std::memset(owner.get(), 0, bytes);
  return Buffer(owner.get(), count, dtype);
}

void UpdateDevice::Copy(const Buffer& from, const Buffer& to) {
  if (from.count > 0) std::memcpy(to.data, from.data, from.bytes());
}

void UpdateDevice::Lamb(
    const float* gradient, size_t count, const LambFactors& factors, double rate, bool adapts,
    float* m, float* v, float* value) {
  const SquaredNorms squares = UpdateLambMoments(gradient, count, factors, m, v, value);
  const bool has_ratio = adapts && squares.update > 0 && squares.value > 0;
  const double ratio = has_ratio ? std::sqrt(squares.value / squares.update) : 1;
  ApplyLamb(m, v, count, factors, static_cast<float>(rate * ratio), value);
}

void UpdateDevice::Descend(
    const float* gradient, size_t count, const DescentFactors& factors, float* velocity,
    float* value) {
  if (velocity == nullptr) return models::Descend(gradient, count, factors, value);
  DescendWithMomentum(gradient, count, factors, velocity, value);
}

// Without state, so all optimizers share it.
UpdateDevice& HostMemory() {
  static UpdateDevice host;
  return host;
}

std::vector<NamedBuffer> HostCopies::Read(
    UpdateDevice& device, const std::vector<NamedBuffer>& buffers) {
  copies_.clear();
  std::vector<NamedBuffer> host = buffers;
  for (NamedBuffer& each : host) {
    if (each.buffer.device < 0) continue;
    std::vector<uint8_t> values(each.buffer.bytes());
    const Buffer copy(values.data(), each.buffer.count, each.buffer.dtype);
    device.Copy(each.buffer, copy);
    copies_.push_back({std::move(values), each.buffer});
    each.buffer = copy;
  }
  return host;
}

void HostCopies::Write(UpdateDevice& device) {
  for (Copy& copy : copies_)
    device.Copy(
        Buffer(copy.values.data(), copy.original.count, copy.original.dtype), copy.original);
  copies_.clear();
}

namespace {

std::string PlaceName(int device) {
  return device < 0 ? "in host memory" : Text("on GPU ", device);
}

}  // namespace

void CheckParameters(const std::vector<Parameter>& parameters, const UpdateDevice& device) {
  for (const Parameter& parameter : parameters) {
    if (parameter.value.device != device.index())
      RefuseArgument(Text(
          parameter.name, " lies ", PlaceName(parameter.value.device), ", the optimizer updates ",
          "parameters ", PlaceName(device.index()),
          "; expected the device of the network as the optimizer's device"));
    if (parameter.value.dtype != DType::kF32)
      RefuseArgument(Text(parameter.name, " is ", NameOf(parameter.value.dtype), ", expected f32"));
  }
}

void CheckPositive(const std::string& name, double value) {
  if (!(value > 0) || std::isinf(value))
    RefuseArgument(Text(name, " is ", value, ", expected above 0"));
}

void CheckNotNegative(const std::string& name, double value) {
  if (!(value >= 0) || std::isinf(value))
    RefuseArgument(Text(name, " is ", value, ", expected at least 0"));
}

void CheckFraction(const std::string& name, double value) {
  if (!(value >= 0 && value < 1))
    RefuseArgument(Text(name, " is ", value, ", expected at least 0 and below 1"));
}

bool EndsWithOneOf(const std::string& name, const LastWords& words) {
  const size_t before = name.find_last_of("./");
  const std::string last = before == std::string::npos ? name : name.substr(before + 1);
  return std::find(words.begin(), words.end(), last) != words.end();
}

}  // namespace dtrun::models

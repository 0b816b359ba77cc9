#include "runtime/reducer/reducer_settings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/reduce/reduce.h"
#include "runtime/device/block_device.h"

namespace dtrun::runtime {
namespace {

using base::Text;

constexpr uint64_t kFirstBucketBytes = 1 << 20;

template <typename... Parts>
[[noreturn]] void Refuse(const Parts&... parts) {
  throw Error(ErrorCode::kInvalidArgument, Text(parts...));
}

bool IsScaled(const Scale& scale) { return scale.before != 1 || scale.after != 1; }

uint64_t FirstBucketBytes(const ReducerSettings& settings) {
  if (settings.first_bucket_bytes > 0) return settings.first_bucket_bytes;
  return std::min(kFirstBucketBytes, settings.bucket_bytes);
}

// The factors also scale the flags, which must survive scaling in 16 bits.
void CheckScale(const ReducerSettings& settings) {
  constexpr double kMost = 1024;
  for (const double factor : {settings.scale.before, settings.scale.after}) {
    if (factor >= 1 / kMost && factor <= kMost) continue;
    Refuse("gradients are scaled by ", factor, "; expected a factor in [1/1024, 1024]");
  }
  const bool adds = settings.op == ReduceOp::kSum || settings.op == ReduceOp::kAverage;
  if (IsScaled(settings.scale) && !adds) {
    Refuse(
        "gradients are scaled and reduced by ", NameOf(settings.op), "; expected sum or average");
  }
}

void CheckGroups(const ReducerSettings& settings, const std::vector<Gradient>& gradients) {
  if (settings.group_count > 0 && !settings.groups.empty()) {
    Refuse(
        "gradients are grouped by lists and by a number of groups, ", settings.group_count,
        "; expected one of them");
  }
  if (settings.group_count > gradients.size()) {
    Refuse(
        "gradients are dealt to ", settings.group_count, " groups; expected at most ",
        gradients.size(), ", one for each");
  }
  std::map<size_t, size_t> group_of;
  for (size_t g = 0; g < settings.groups.size(); ++g) {
    for (const size_t i : settings.groups[g]) {
      if (i >= gradients.size()) {
        Refuse(
            "group ", g, " has gradient ", i, ", which does not exist; the reducer has ",
            gradients.size());
      }
      const Gradient& gradient = gradients[i];
      const auto [known, is_new] = group_of.emplace(i, g);
      if (!is_new && known->second == g)
        Refuse("group ", g, " has gradient ", i, " '", gradient.name, "' twice");
      if (!is_new) {
        Refuse(
            "gradient ", i, " '", gradient.name, "' is in groups ", known->second, " and ", g,
            "; expected one");
      }
      const Gradient& first = gradients[settings.groups[g].front()];
      if (first.buffer.dtype != gradient.buffer.dtype) {
        Refuse(
            "group ", g, " has '", first.name, "' of ", NameOf(first.buffer.dtype), " and '",
            gradient.name, "' of ", NameOf(gradient.buffer.dtype), "; expected one dtype");
      }
    }
  }
}

}  // namespace

namespace {

std::string PlaceOf(const Buffer& buffer) {
  if (buffer.device < 0) return "in host memory";
  return Text("on GPU ", buffer.device, " (stream ", buffer.stream, ")");
}

}  // namespace

void CheckGradients(const std::vector<Gradient>& gradients) {
  std::map<std::string, size_t> index_of;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Gradient& gradient = gradients[i];
    if (gradient.name.empty()) Refuse("gradient ", i, " has no name");
    const auto [known, is_new] = index_of.emplace(gradient.name, i);
    if (!is_new) {
      Refuse(
          "gradients ", known->second, " and ", i, " are both called '", gradient.name,
          "'; expected a name for each");
    }
    if (SizeOf(gradient.buffer.dtype) == 0)
      Refuse("gradient '", gradient.name, "' has a dtype that does not exist");
    const Gradient& first = gradients[0];
    if (gradient.buffer.device != first.buffer.device ||
        gradient.buffer.stream != first.buffer.stream) {
      Refuse(
          "gradient '", gradient.name, "' lies ", PlaceOf(gradient.buffer), ", '", first.name, "' ",
          PlaceOf(first.buffer), "; expected all in one place");
    }
  }
}

void CheckSettings(const ReducerSettings& settings, const std::vector<Gradient>& gradients) {
  if (settings.op == ReduceOp::kAdasum)
    Refuse(
        "gradients are reduced by adasum, which combines whole tensors; expected sum, average, "
        "min, max or product (or a DistributedOptimizer, which combines its updates by adasum)");
  CheckScale(settings);
  if (settings.bucket_bytes > 0 && settings.first_bucket_bytes > settings.bucket_bytes) {
    Refuse(
        "first_bucket_bytes is ", settings.first_bucket_bytes, "; expected at most bucket_bytes, ",
        settings.bucket_bytes);
  }
  CheckGroups(settings, gradients);
  if (settings.autotune && !gradients.empty() && gradients[0].buffer.device >= 0)
    throw Error(
        ErrorCode::kUnavailable,
        "the gradients lie on a GPU; the autotuner, which measures what the host waits for, is for "
        "gradients in host memory");
}

ReducerSettings Settled(
    ReducerSettings settings, const std::vector<Gradient>& gradients, bool within_one_host) {
  settings.on_gpu = !gradients.empty() && gradients[0].buffer.device >= 0;
  const bool is_auto = settings.bucket_bytes == 0;
  if (is_auto) {
    settings.bucket_bytes =
        std::max(AutoBucketBytes(SpecsOf(gradients), within_one_host), settings.first_bucket_bytes);
  }
  // Within a host another bucket costs microseconds, less than the copy of a gradient that a
  // framework has made elsewhere.
  const bool costs_little = is_auto && within_one_host && !settings.on_gpu;
  settings.single_bytes =
      costs_little ? kSingleBytes : std::max(settings.bucket_bytes, kSingleBytes);
  return settings;
}

std::vector<GradientSpec> SpecsOf(const std::vector<Gradient>& gradients) {
  std::vector<GradientSpec> specs;
  for (const Gradient& gradient : gradients)
    specs.push_back({gradient.name, gradient.buffer.count, gradient.buffer.dtype});
  return specs;
}

PlanSettings PlanSettingsOf(
    const ReducerSettings& settings, const std::vector<GradientSpec>& gradients) {
  return {
      .bucket_bytes = settings.bucket_bytes,
      .first_bucket_bytes = FirstBucketBytes(settings),
      .single_bytes = settings.single_bytes,
      .groups =
          settings.group_count > 0 ? DealGroups(gradients, settings.group_count) : settings.groups,
      .flags_apart = settings.wire != nullptr && !CarriesFlags(*settings.wire) && !settings.on_gpu,
  };
}

std::vector<std::string> Lines(const ReducerSettings& settings, const BucketPlan& plan) {
  std::string text = Text(
      NameOf(settings.op), " in buckets of ", settings.bucket_bytes, " bytes, the first of ",
      plan.settings.first_bucket_bytes);
  if (IsScaled(settings.scale))
    text += Text(", scaled by ", settings.scale.before, " and ", settings.scale.after);
  if (settings.wire != nullptr) text += Text(", on the wire as ", settings.wire->description());
  if (!settings.rebuild) text += ", never rebuilt";
  if (settings.on_gpu) text += ", on GPUs";
  std::vector<std::string> items;
  for (const GradientSpec& gradient : plan.gradients) items.push_back(Describe(gradient));
  for (size_t g = 0; g < plan.settings.groups.size(); ++g) {
    for (const size_t i : plan.settings.groups[g]) items[i] += Text(" in group ", g);
  }
  // Gradients without elements come last. They may exist for their flag alone.
  std::vector<std::string> lines = {text};
  for (const bool empty : {false, true})
    for (size_t i = 0; i < items.size(); ++i)
      if ((plan.gradients[i].count == 0) == empty) lines.push_back(items[i]);
  return lines;
}

namespace {

// Rounds f64 to f32, to odd: a result that is not exact gets an odd last bit. Then rounding the
// result to 16 bits gives the same bits as rounding the f64 itself to 16 bits.
float RoundedToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  uint32_t bits = 0;
  std::memcpy(&bits, &nearest, sizeof bits);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // toward zero
  bits |= 1;
  float odd = 0;
  std::memcpy(&odd, &bits, sizeof odd);
  return odd;
}

class Cast : public WireFormat {
 public:
  explicit Cast(DType wire) : wire_(wire) {}
  std::string description() const override { return NameOf(wire_); }
  DType dtype() const override { return wire_; }
  uint64_t Count(size_t, const Buffer& gradients) override { return gradients.count; }
  bool IsElementwise() const override { return true; }

  void Compress(size_t, const Buffer& gradients, const Buffer& wire) override {
    if (gradients.dtype == DType::kF32)
      return ops::Convert(gradients.data, DType::kF32, wire.data, wire_, wire.count);
    const auto* values = static_cast<const double*>(gradients.data);
    ByPieces(wire, [&](uint64_t first, uint64_t count, void* narrow) {
      for (uint64_t k = 0; k < count; ++k) piece_[k] = RoundedToOdd(values[first + k]);
      ops::Convert(piece_, DType::kF32, narrow, wire_, count);
    });
  }

  void Decompress(size_t, const Buffer& wire, const Buffer& gradients) override {
    if (gradients.dtype == DType::kF32)
      return ops::Convert(wire.data, wire_, gradients.data, DType::kF32, wire.count);
    auto* values = static_cast<double*>(gradients.data);
    ByPieces(wire, [&](uint64_t first, uint64_t count, const void* narrow) {
      ops::Convert(narrow, wire_, piece_, DType::kF32, count);
      std::copy(piece_, piece_ + count, values + first);
    });
  }

 private:
  static constexpr uint64_t kPiece = 1024;  // elements

  template <typename Body>
  static void ByPieces(const Buffer& wire, const Body& body) {
    for (uint64_t first = 0; first < wire.count; first += kPiece) {
      const uint64_t count = std::min(kPiece, wire.count - first);
      body(first, count, wire.Slice(first, count).data);
    }
  }

  DType wire_;
  float piece_[kPiece] = {};
};

}  // namespace

std::shared_ptr<WireFormat> CreateCast(DType wire) { return std::make_shared<Cast>(wire); }

bool IsCompressed(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

// Only floats have an exponent.
bool CarriesFlags(const WireFormat& format) { return ExponentOf(format.dtype()) != 0; }

}  // namespace dtrun::runtime

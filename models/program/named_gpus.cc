#include "models/program/named_gpus.h"

#include <algorithm>
#include <cstddef>

#include "models/text.h"

namespace dtrun::models {
namespace {

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

bool IsGpu(const Device& device) { return device.kind == DeviceKind::kCuda; }

}  // namespace

NamedGpus GpusNamedIn(const std::string& strategy) {
  const size_t colon = strategy.find(':');
  NamedGpus gpus{strategy, strategy.substr(0, colon), {}};
  const bool takes_gpus = gpus.strategy == "one_device" || gpus.strategy == "mirrored";
  if (!takes_gpus || colon == std::string::npos) return gpus;
  const std::vector<std::string> names = Split(strategy.substr(colon + 1));
  // Several are for the strategy itself to refuse.
  if (gpus.strategy == "one_device" && names.size() > 1) return gpus;
  for (const std::string& name : names) gpus.devices.push_back(ParseDevice(name));
  const auto count = std::count_if(gpus.devices.begin(), gpus.devices.end(), IsGpu);
  if (count == 0) gpus.devices.clear();
  if (static_cast<size_t>(count) == gpus.devices.size()) return gpus;
  throw Error(ErrorCode::kInvalidArgument, "expected GPUs for all ranks, or cpu for all");
}

DeviceChoiceInput WishOf(const NamedGpus& gpus, int local_rank, int local_size) {
  const size_t named = gpus.devices.size();
  const bool one = gpus.strategy == "one_device";
  if (!one && named != static_cast<size_t>(local_size)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "found ", named, named == 1 ? " device" : " devices", " and ", local_size,
            local_size == 1 ? " rank" : " ranks",
            " on a host; expected one for each rank (dtrun -np ", named, ")"));
  }
  const Device& mine = gpus.devices[one ? 0 : static_cast<size_t>(local_rank)];
  DeviceChoiceInput input;
  input.wish = mine.name();
  input.local_rank = local_rank;
  input.local_size = static_cast<int>(std::count(gpus.devices.begin(), gpus.devices.end(), mine));
  return input;
}

}  // namespace dtrun::models

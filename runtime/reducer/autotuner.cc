// Every rank times its steps. A reduction of one number tells all ranks the time of the slowest
// rank. From equal scores, the searches of all ranks choose the same trials without further
// messages.

#include "runtime/reducer/autotuner.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::JsonText;
using base::ParseJsonOrDiscard;
using base::Text;
using nlohmann::json;
using ops::WireDType;

// The dimensions of the box, in the order in which they are searched.
enum Dimension : size_t { kFlat, kChunk, kBucket, kWire, kDimensions };

// In these steps, memory, caches and connections reach their steady state.
constexpr uint64_t kWarmUpSteps = 5;

const char* NameOf(WireDType wire) {
  switch (wire) {
    case WireDType::kNone: return "none";
    case WireDType::kF16: return "f16";
    case WireDType::kBF16: return "bf16";
  }
  return "unknown";
}

Tuning TuningOf(const std::vector<uint64_t>& values) {
  return {
      .bucket_bytes = values[kBucket],
      .route = {
          .wire = static_cast<WireDType>(values[kWire]),
          .chunk_bytes = values[kChunk],
          .flat = values[kFlat] != 0}};
}

// `value`, and its halves and doubles within the limits.
TuningDimension Around(
    const char* name, uint64_t value, int halvings, int doublings, uint64_t least, uint64_t most) {
  TuningDimension dimension{.name = name, .values = {}, .start = 0};
  for (int power = -halvings; power <= doublings; ++power) {
    const uint64_t near = power < 0 ? value >> -power : value << power;
    if (power == 0) dimension.start = dimension.values.size();
    if (power == 0 || (near >= least && near <= most)) dimension.values.push_back(near);
  }
  return dimension;
}

// The number of ranks on each host: "2+2 ranks".
std::string PlacementOf(const ops::Communicator& communicator) {
  const std::vector<std::string>& hosts = communicator.members().hosts;
  if (hosts.empty()) return Text(communicator.size(), " ranks");
  std::vector<std::string> order;
  std::map<std::string, int> ranks;
  for (const std::string& host : hosts)
    if (++ranks[host] == 1) order.push_back(host);
  std::vector<std::string> slots;
  for (const std::string& host : order) slots.push_back(Text(ranks[host]));
  return Text(base::Join(slots, "+"), " ranks");
}

std::string ReadWhole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string WhyNot(const std::string& path) {
  return Text("cannot write ", path, ": ", std::strerror(errno));
}

}  // namespace

std::vector<TuningDimension> TuningBox(const Tuning& defaults, bool has_routes, bool tune_wire) {
  std::vector<TuningDimension> box(kDimensions);
  const ops::Route& route = defaults.route;
  box[kFlat] = {"path", {route.flat}, 0};
  box[kChunk] = {"chunk_bytes", {route.chunk_bytes}, 0};
  box[kBucket] = Around("bucket_bytes", defaults.bucket_bytes, 3, 3, 64 << 10, 64 << 20);
  box[kWire] = {"wire", {static_cast<uint64_t>(route.wire)}, 0};
  if (!has_routes) return box;
  box[kFlat] = {"path", {0, 1}, route.flat};
  box[kChunk] = Around("chunk_bytes", route.chunk_bytes, 3, 2, 64 << 10, 64 << 20);
  if (tune_wire) box[kWire] = {"wire", {0, 1, 2}, static_cast<size_t>(route.wire)};
  return box;
}

Autotuner::Autotuner(
    ops::Communicator& communicator, const Tuning& defaults, const std::string& subject,
    const AutotuneOptions& options)
    : communicator_(communicator),
      options_(options),
      key_(Text(PlacementOf(communicator), ", ", communicator.backend(), ", ", subject)),
      search_(TuningBox(defaults, communicator.route().has_value(), options.tune_wire)),
      tuning_(defaults),
      settling_(kWarmUpSteps) {
  std::string cache;
  CheckOnRank0(communicator_.rank() == 0 ? OpenFiles() : "");
  if (communicator_.rank() == 0 && !options_.cache_file.empty())
    cache = ReadWhole(options_.cache_file);
  const auto bytes = ops::BroadcastBytes(communicator_, cache.data(), cache.size(), 0);
  if (bytes->bytes() > 0)
    UseCache(std::string(static_cast<const char*>(bytes->data()), bytes->bytes()));
}

// Opens the files before the search, so that a file that cannot be written is reported early.
// Returns the error, or "".
std::string Autotuner::OpenFiles() {
  if (!options_.log_file.empty()) {
    log_.open(options_.log_file);
    log_ << "step,state,bucket_bytes,path,chunk_bytes,wire,seconds\n";
    if (!log_.flush()) return WhyNot(options_.log_file);
  }
  if (options_.cache_file.empty()) return "";
  const std::string beside = BesideCache();
  const bool possible = static_cast<bool>(std::ofstream(beside));
  const std::string error = possible ? "" : WhyNot(options_.cache_file);
  std::remove(beside.c_str());
  return error;
}

std::string Autotuner::BesideCache() const { return Text(options_.cache_file, ".", ::getpid()); }

// Throws the error of rank 0, if there is one, on all ranks.
void Autotuner::CheckOnRank0(const std::string& error) {
  const auto bytes = ops::BroadcastBytes(communicator_, error.data(), error.size(), 0);
  if (bytes->bytes() == 0) return;
  throw Error(
      ErrorCode::kSystem,
      "autotune: " + std::string(static_cast<const char*>(bytes->data()), bytes->bytes()));
}

void Autotuner::UseCache(const std::string& text) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "autotune_cache: ", options_.cache_file, " holds no results of autotune (", reason,
            "); remove the file, or name another file"));
  };
  const json all = ParseJsonOrDiscard(text);
  if (!all.is_object()) refuse("not a JSON object");
  const auto found = all.find(key_);
  if (found == all.end()) return;
  const auto number = [&](const char* name) -> uint64_t {
    const auto value = found->is_object() ? found->find(name) : found->end();
    if (!found->is_object() || value == found->end() || !value->is_number_unsigned())
      refuse(Text("no number '", name, "' for ", key_));
    return value->get<uint64_t>();
  };
  const uint64_t wire = number("wire"), flat = number("flat"), bucket = number("bucket_bytes"),
                 chunk = number("chunk_bytes");
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (wire > 2 || flat > 1 || bucket == 0 || bucket > kMost || chunk == 0 || chunk > kMost)
    refuse("a number out of its range for " + key_);
  // If the wire type must not change, a result with another wire type is ignored.
  if (!options_.tune_wire && wire != static_cast<uint64_t>(tuning_.route.wire)) return;
  tuning_ = {bucket, {static_cast<WireDType>(wire), chunk, flat != 0}};
  frozen_ = true;
  Log("cached", 0);
}

uint64_t Autotuner::step_count() const { return kWarmUpSteps + 2 * search_.trial_count(); }

bool Autotuner::EndStep(base::Duration duration) {
  ++steps_;
  if (frozen_) return false;
  if (settling_ > 0) {
    if (--settling_ > 0 || searching_) return false;
    searching_ = true;
  } else {
    double seconds = std::chrono::duration<double>(duration).count();
    communicator_.AllReduce(Buffer(&seconds, 1), ReduceOp::kMax);
    Log("trial", seconds);
    search_.Record(seconds);
  }
  const Tuning before = std::exchange(tuning_, TuningOf(search_.trial()));
  settling_ = 1;
  if (search_.done()) Freeze();
  return !(tuning_ == before);
}

void Autotuner::Freeze() {
  frozen_ = true;
  Log("frozen", search_.seconds());
  std::string error;
  if (communicator_.rank() == 0 && !options_.cache_file.empty()) error = WriteCache();
  if (error.empty() && log_.is_open() && !log_) error = WhyNot(options_.log_file);
  CheckOnRank0(error);
}

void Autotuner::Log(const char* state, double seconds) {
  if (!log_.is_open()) return;
  log_ << steps_ << ',' << state << ',' << tuning_.bucket_bytes << ','
       << (tuning_.route.flat ? "flat" : "hierarchical") << ',' << tuning_.route.chunk_bytes << ','
       << NameOf(tuning_.route.wire) << ',' << seconds << std::endl;
}

// Keeps results that other jobs have added meanwhile. The file is replaced as a whole or stays as
// it is. Returns the error, or "".
std::string Autotuner::WriteCache() const {
  json all = ParseJsonOrDiscard(ReadWhole(options_.cache_file));
  if (!all.is_object()) all = json::object();
  all[key_] = {
      {"bucket_bytes", tuning_.bucket_bytes},
      {"chunk_bytes", tuning_.route.chunk_bytes},
      {"flat", tuning_.route.flat ? 1u : 0u},
      {"wire", static_cast<unsigned>(tuning_.route.wire)},
      {"seconds", search_.seconds()}};
  const std::string beside = BesideCache();
  std::ofstream file(beside);
  file << JsonText(all, 1) << '\n';
  file.close();
  if (file && std::rename(beside.c_str(), options_.cache_file.c_str()) == 0) return "";
  const std::string error = WhyNot(options_.cache_file);
  std::remove(beside.c_str());
  return error;
}

namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

TuningSearch::TuningSearch(
    std::vector<TuningDimension> dimensions, const TuningSearchOptions& options)
    : dimensions_(std::move(dimensions)), options_(options) {
  for (const TuningDimension& dimension : dimensions_)
    trial_.push_back(dimension.values[dimension.start]);
  SkipWithoutChoice();
}

void TuningSearch::SkipWithoutChoice() {
  while (!done() && dimensions_[dimension_].values.size() == 1) ++dimension_;
  if (done()) return;
  scores_.assign(dimensions_[dimension_].values.size(), {});
  value_ = 0;
  trial_[dimension_] = dimensions_[dimension_].values[0];
}

void TuningSearch::Record(double seconds) {
  scores_[value_].push_back(seconds);
  value_ = (value_ + 1) % scores_.size();
  const bool through = value_ == 0 && scores_[0].size() == static_cast<size_t>(options_.rounds);
  if (through) return EndDimension();
  trial_[dimension_] = dimensions_[dimension_].values[value_];
}

// The fastest value, or the default if no value is clearly faster.
size_t TuningSearch::Fastest() const {
  const size_t start = dimensions_[dimension_].start;
  size_t fastest = start;
  for (size_t value = 0; value < scores_.size(); ++value)
    if (Median(scores_[value]) < Median(scores_[fastest])) fastest = value;
  const double worth_it = Median(scores_[start]) * (1 - options_.least_gain);
  return Median(scores_[fastest]) < worth_it ? fastest : start;
}

void TuningSearch::EndDimension() {
  const size_t fastest = Fastest();
  seconds_ = Median(scores_[fastest]);
  trial_[dimension_] = dimensions_[dimension_].values[fastest];
  ++dimension_;
  SkipWithoutChoice();
}

uint64_t TuningSearch::trial_count() const {
  uint64_t trials = 0;
  for (const TuningDimension& dimension : dimensions_)
    if (dimension.values.size() > 1)
      trials += dimension.values.size() * static_cast<uint64_t>(options_.rounds);
  return trials;
}

}  // namespace dtrun::runtime

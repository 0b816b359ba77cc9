#include "models/train/kept_training.h"

#include <dtrun/objects.h>
#include <dtrun/optimizer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <tuple>
#include <utility>

namespace dtrun::models {
namespace {

// The position that one rank has kept.
struct Mark {
  uint64_t has = 0, step = 0, epoch = 0, batch = 0, epoch_examples = 0;
  double learning_rate = 0;
};

// The values and the optimizer's state, in host memory.
std::vector<NamedBuffer> BorrowAll(Replica& replica) {
  std::vector<NamedBuffer> all = replica.BorrowWeights();
  const std::vector<NamedBuffer> state = replica.BorrowState();
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

// One line for each epoch: its number, then names and values with all bits.
std::string Pack(const History& history) {
  std::ostringstream text;
  text << std::hexfloat;
  for (size_t i = 0; i < history.epochs.size(); ++i) {
    text << history.epochs[i];
    for (const auto& [name, value] : history.logs[i]) text << '\t' << name << '\t' << value;
    text << '\n';
  }
  return text.str();
}

History UnpackHistory(const std::string& text) {
  History history;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string epoch, name, value;
    std::getline(words, epoch, '\t');
    history.epochs.push_back(std::stoull(epoch));
    Logs& logs = history.logs.emplace_back();
    while (std::getline(words, name, '\t') && std::getline(words, value, '\t'))
      logs[name] = std::strtod(value.c_str(), nullptr);
  }
  return history;
}

// Values as bytes, each text after its size.
class Writer {
 public:
  template <typename T>
  void Add(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void AddBytes(const void* data, uint64_t size) {
    Add(size);
    bytes_.append(static_cast<const char*>(data), size);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, Next(sizeof value), sizeof value);
    return value;
  }
  std::string TakeBytes() {
    const auto size = Take<uint64_t>();
    return {Next(size), size};
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  const char* Next(uint64_t size) {
    if (bytes_.size() - at_ < size)
      throw Error(ErrorCode::kMismatch, "the kept state is of another training");
    at_ += size;
    return bytes_.data() + at_ - size;
  }

  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace

std::vector<double> History::Of(const std::string& name) const {
  std::vector<double> values;
  for (const Logs& of_epoch : logs) {
    const auto found = of_epoch.find(name);
    values.push_back(
        found == of_epoch.end() ? std::numeric_limits<double>::quiet_NaN() : found->second);
  }
  return values;
}

void KeptTraining::BeginStep(Run& run) { computed_ = SumsOf(run.metrics()); }

void KeptTraining::EndStep(Run& run) {
  boundary_ = Boundary{run.position, run.epoch_examples, SumsOf(run.metrics())};
  computed_.clear();
}

void KeptTraining::Keep(Run& run, const History& history) {
  const bool is_whole = run.replica().distributed_optimizer().has_whole_state();
  // If a rank was lost while Restore gave values to the replica, what was kept before still holds.
  if (!boundary_ || !is_whole || !tensors_.empty()) return;
  for (const NamedBuffer& tensor : BorrowAll(run.replica())) {
    const auto* bytes = static_cast<const std::byte*>(tensor.buffer.data);
    tensors_.emplace_back(bytes, bytes + tensor.buffer.bytes());
  }
  learning_rate_ = run.learning_rate();
  history_ = history;
}

void KeptTraining::Store(Run& run, const History& history) {
  if (job_ == nullptr || !job_->keeps_state()) return;
  if (!boundary_ || !run.replica().distributed_optimizer().has_whole_state()) return;
  const TrainingPosition& at = boundary_->position;
  Writer state;
  state.Add(Mark{1, at.step, at.epoch, at.batch, boundary_->epoch_examples, run.learning_rate()});
  state.AddBytes(boundary_->sums.data(), boundary_->sums.size() * sizeof(double));
  const std::string text = Pack(history);
  state.AddBytes(text.data(), text.size());
  for (const NamedBuffer& tensor : BorrowAll(run.replica()))
    state.AddBytes(tensor.buffer.data, tensor.buffer.bytes());
  job_->KeepState(name_, at.step, state.bytes());
}

// Takes the state of an earlier process of this host, as if this process had kept it.
void KeptTraining::Load() {
  if (job_ == nullptr || !tensors_.empty()) return;
  const std::optional<KeptStep> found = job_->LoadState(name_);
  if (!found) return;
  Reader state(found->state);
  const auto mark = state.Take<Mark>();
  const std::string sums = state.TakeBytes();
  boundary_ = Boundary{{mark.epoch, mark.batch, mark.step}, mark.epoch_examples};
  boundary_->sums.resize(sums.size() / sizeof(double));
  std::memcpy(boundary_->sums.data(), sums.data(), sums.size());
  learning_rate_ = mark.learning_rate;
  history_ = UnpackHistory(state.TakeBytes());
  while (!state.at_end()) {
    const std::string bytes = state.TakeBytes();
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    tensors_.emplace_back(first, first + bytes.size());
  }
}

// A program makes its trainings in the same order in all its processes.
std::string KeptTraining::NextName() {
  static std::atomic<int> made{0};
  return "training." + std::to_string(made++);
}

bool KeptTraining::IsKeptBySome(Communicator& world) {
  Load();
  int32_t is_kept = tensors_.empty() ? 0 : 1;
  world.AllReduce(Buffer(&is_kept, 1), ReduceOp::kMax);
  return is_kept != 0;
}

bool KeptTraining::Restore(Run& run, History& history) {
  Load();
  Mark mine;
  if (!tensors_.empty()) {
    const TrainingPosition& at = boundary_->position;
    mine = {1, at.step, at.epoch, at.batch, boundary_->epoch_examples, learning_rate_};
  }
  std::vector<Mark> marks;
  for (const std::vector<Mark>& of_rank : AllGatherObjects(run.world(), std::vector<Mark>{mine}))
    marks.push_back(of_rank.at(0));
  const auto furthest =
      std::max_element(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
        return std::tie(a.has, a.step, a.epoch) < std::tie(b.has, b.step, b.epoch);
      });
  if (furthest->has == 0) {
    boundary_.reset();
    return false;
  }
  const int root = static_cast<int>(furthest - marks.begin());
  const std::vector<NamedBuffer> all = BorrowAll(run.replica());
  const bool fits = std::equal(
      all.begin(), all.end(), tensors_.begin(), tensors_.end(),
      [](const NamedBuffer& to, const auto& bytes) { return to.buffer.bytes() == bytes.size(); });
  if (!tensors_.empty() && !fits)
    throw Error(ErrorCode::kMismatch, "the kept state is of a training with other parameters");
  if (run.world().rank() == root)
    for (size_t i = 0; i < all.size(); ++i)
      std::memcpy(all[i].buffer.data, tensors_[i].data(), tensors_[i].size());
  BroadcastBuffers(run.world(), all, root);
  run.replica().ReturnWeights();
  run.replica().ReturnState();
  history = UnpackHistory(BroadcastBytes(run.world(), Pack(history_), root));
  run.set_learning_rate(furthest->learning_rate);
  run.epoch_examples = furthest->epoch_examples;
  run.Resume({furthest->epoch, furthest->batch, furthest->step});
  // A rank that is a step behind has computed its share of that step before the step failed.
  const bool is_behind = mine.has == 1 && mine.step + 1 == furthest->step && !computed_.empty();
  const std::vector<double> none;
  if (furthest->batch > 0)
    SetSums(run.metrics(), mine.has == 0 ? none : is_behind ? computed_ : boundary_->sums);
  tensors_.clear();
  EndStep(run);
  return true;
}

}  // namespace dtrun::models

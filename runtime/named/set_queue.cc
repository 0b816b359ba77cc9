// Ranks agree in rounds. In a round, every rank tells every rank its submissions since the last
// round. Then all ranks know from equal tables (tensor_table.h) which tensors all ranks have
// submitted. They move these tensors in the same order everywhere. A rank takes part in a round if
// it has news. It also takes part if it waits for news of other ranks and another rank has begun.
// So a round happens only if there is news. There is no coordinator and no clock.
//
// Rounds and data have separate communicators, so that ranks negotiate while data moves. Transfers
// start in the order of the rounds, which is the same on all ranks.
//
// A burst of submissions is announced in few rounds. Without a wait, each announcement needs twice
// as many submissions as the one before (or kBurstBytes). So the first submission is announced at
// once, and a thousand submissions take ten rounds. A wait, or any other call that drives progress,
// announces all submissions.

#include "runtime/named/set_queue.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime::named {
namespace {

using base::Text;

// This much data is worth its own round.
constexpr uint64_t kBurstBytes = 1 << 20;
constexpr base::Duration kAnswerAfter = std::chrono::milliseconds(100);
// The maximum number of tensors that a stall report names.
constexpr size_t kMostNames = 6;
// The longest pause between two looks that counts as waiting. In a longer pause, this rank was busy
// elsewhere or its process was stopped.
constexpr base::Duration kLongestLook = std::chrono::seconds(1);

int64_t Seconds(base::Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

std::exception_ptr ErrorOf(const Refusal& refusal, const char* operation) {
  return std::make_exception_ptr(Error(refusal.code, refusal.text, refusal.ranks, operation));
}

}  // namespace

SetQueue::SetQueue(
    ops::Communicator& communicator, ops::Engine& engine, base::LogSink log,
    const Settings& settings, std::unique_ptr<TensorObserver> observer)
    : engine_(engine),
      log_(std::move(log)),
      settings_(settings),
      observer_(std::move(observer)),
      round_(communicator),
      line_(communicator, engine, settings.batch_bytes),
      rank_(communicator.rank()),
      size_(communicator.size()),
      rings_(round_.RingsWhenAwaited()),
      table_(round_.members(), rank_, settings.cache_capacity) {}

// --- submitting ---------------------------------------------------------------------------------

void SetQueue::CheckUsable() const {
  if (broken_ != nullptr) std::rethrow_exception(broken_);
  if (join_ == nullptr) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "this rank has joined; wait for the join before you submit again");
}

void SetQueue::CheckNew(std::span<const Submitted> tensors) const {
  if (tensors.size() == 1) return;
  std::vector<std::string_view> names;
  for (const Submitted& submitted : tensors) names.push_back(submitted.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  throw Error(
      ErrorCode::kDuplicateName,
      Text("tensor '", *twice, "' is twice in a group; expected different names"), {},
      NameOf(tensors[0].request.kind));
}

// Finds or creates the tensors. Refuses all of them if one of them is under way.
void SetQueue::FindTensors(std::span<Submitted> tensors) {
  for (Submitted& submitted : tensors) {
    submitted.tensor = &table_.At(submitted.name);
    if (submitted.tensor->mine == nullptr) continue;
    for (Submitted& other : tensors) {
      if (other.tensor != nullptr) table_.Release(*other.tensor);
    }
    throw Error(
        ErrorCode::kDuplicateName,
        Text(
            "tensor '", submitted.name,
            "' is under way from an earlier submission; wait for that work first, or use another "
            "name",
            tensors.size() > 1 ? "; nothing of the group was submitted" : ""),
        {}, NameOf(submitted.request.kind));
  }
}

std::shared_ptr<Submission> SetQueue::Submit(std::span<Submitted> tensors, Callback callback) {
  CheckNew(tensors);
  auto submission = std::make_shared<Submission>(tensors.size());
  submission->callback = std::move(callback);
  bool now = false;
  {
    std::lock_guard lock(mutex_);
    CheckUsable();
    FindTensors(tensors);
    uint64_t bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      Part& part = submission->parts[i];
      Tensor& tensor = *tensors[i].tensor;
      part.submission = submission.get();
      part.tensor = &tensor;
      part.input = tensors[i].input;
      part.output = tensors[i].output;
      part.gpu = std::move(tensors[i].gpu);
      bytes += tensors[i].request.bytes();
      // A request that equals the one before is the same object, and is announced by a number.
      const auto& before = tensor.requests->by_rank[static_cast<size_t>(rank_)];
      part.request = before != nullptr && *before == tensors[i].request
                         ? before
                         : std::make_shared<const Request>(std::move(tensors[i].request));
      tensor.mine = &part;
      table_.Announce(part);
      if (observer_ != nullptr) observer_->Submitted(tensor.name);
    }
    submission->unfinished = tensors.size();
    submitted_ += tensors.size();
    submission->self = submission;
    now = WantsToAnnounceNow(bytes);
  }
  Drive(now);
  return submission;
}

std::shared_ptr<Submission> SetQueue::Join(Callback callback) {
  auto submission = std::make_shared<Submission>(0);
  submission->callback = std::move(callback);
  {
    std::lock_guard lock(mutex_);
    CheckUsable();
    join_ = submission;
    not_joined_ = {};
    submission->self = submission;
    table_.AnnounceJoin();
  }
  Drive(true);
  return submission;
}

bool SetQueue::WantsToAnnounceNow(uint64_t bytes) {
  if (burst_ended_.load(std::memory_order_relaxed)) {
    burst_ended_.store(false, std::memory_order_relaxed);
    held_ = held_bytes_ = 0;
    held_most_ = 1;
  }
  held_bytes_ += bytes;
  if (++held_ < held_most_ && held_bytes_ < kBurstBytes) return false;
  held_most_ = 2 * held_;
  held_ = 0;
  held_bytes_ = 0;
  return true;
}

void SetQueue::Drive(bool now) {
  if (now) {
    engine_.Poll();
  } else {
    engine_.Wake();
  }
}

void SetQueue::EndBurst() { burst_ended_.store(true, std::memory_order_relaxed); }

bool SetQueue::Test(const Submission& submission) {
  EndBurst();
  if (submission.done.load(std::memory_order_acquire)) return true;
  engine_.Poll();
  return submission.done.load(std::memory_order_acquire);
}

void SetQueue::Wait(const Submission& submission) {
  EndBurst();
  engine_.WaitUntil([&] { return submission.done.load(std::memory_order_acquire); });
}

// --- progress -----------------------------------------------------------------------------------

bool SetQueue::Advance() {
  bool advanced = false;
  {
    std::lock_guard lock(mutex_);
    try {
      while (broken_ == nullptr && Step()) advanced = true;
    } catch (...) {
      Break(std::current_exception());
      advanced = true;
    }
  }
  if (advanced) CallBack();
  return advanced;
}

// Runs without the lock, because a callback may submit.
void SetQueue::CallBack() {
  std::vector<std::shared_ptr<Submission>> ended;
  {
    std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (const auto& submission : ended) submission->callback(submission);
}

bool SetQueue::Step() {
  const bool advanced = line_.Advance([this](const Batch& batch) { FinishBatch(batch); });
  if (round_.under_way()) return ContinueRound() || advanced;
  if (!TakesPart()) return advanced;
  BeginRound();
  return true;
}

// A rank takes part in the rounds of other ranks only if something here depends on their news.
// Otherwise no tensor of theirs can be done before this rank has news, so the round waits for that
// news. Then a step in which every rank submits the same tensors takes one round, however late each
// rank is.
bool SetQueue::TakesPart() const {
  if (table_.HasNews()) return true;
  const bool depends = table_.my_pending() > 0 || join_ != nullptr;
  return (depends || answers_) && round_.MayBeAwaited();
}

void SetQueue::BeginRound() {
  held_ = held_bytes_ = 0;
  round_.Begin(table_.TakeNews());
  answers_ = false;
}

bool SetQueue::ContinueRound() {
  const auto news = round_.Advance();
  if (!news) return false;
  not_joined_.since = base::Duration(-1);  // other ranks continue
  Follow(table_.Apply(*news));
  return true;
}

void SetQueue::Follow(Outcome outcome) {
  for (const Failed& failed : outcome.failed) {
    const char* operation = NameOf(failed.part->request->kind);
    FailPart(*failed.part, ErrorOf(failed.refusal, operation));
  }
  for (const Ready& ready : outcome.ready) {
    if (observer_ != nullptr && ready.tensor != nullptr) observer_->Agreed(ready.tensor->name);
    const bool barrier = ready.request().kind == Kind::kBarrier;
    if (barrier && ready.tensor != nullptr) FinishPart(*ready.tensor->mine);
  }
  for (Batch& batch : PlanBatches(std::move(outcome.ready), size_, settings_.batch_bytes)) {
    line_.Add(std::move(batch));
  }
  if (outcome.last_joined && join_ != nullptr) {
    join_->last_joined = *outcome.last_joined;
    End(*join_);
    join_ = nullptr;
  }
  if (outcome.join_refused && join_ != nullptr) {
    join_->error = ErrorOf(*outcome.join_refused, "join");
    End(*join_);
    join_ = nullptr;
  }
}

void SetQueue::FinishBatch(const Batch& batch) {
  for (const Item& item : batch) {
    if (item.part != nullptr) FinishPart(*item.part);
  }
}

// --- completion and failure ----------------------------------------------------------------------

void SetQueue::FinishPart(Part& part, bool failed) {
  if (observer_ != nullptr) observer_->Ended(part.tensor->name, failed);
  Submission& submission = *part.submission;
  if (--submission.unfinished == 0) End(submission);
}

// The other tensors of its group also fail: the table fails them, or they get the same error.
void SetQueue::FailPart(Part& part, const std::exception_ptr& error) {
  Submission& submission = *part.submission;
  if (submission.error == nullptr) submission.error = error;
  FinishPart(part, /*failed=*/true);
}

void SetQueue::End(Submission& submission) {
  // All names of the submission are free from here on.
  submitted_ -= submission.parts.size();
  for (Part& part : submission.parts) {
    Tensor* const tensor = std::exchange(part.tensor, nullptr);
    tensor->mine = nullptr;
    table_.Release(*tensor);
  }
  // The submission may have no other owner.
  std::shared_ptr<Submission> self = std::move(submission.self);
  submission.done.store(true, std::memory_order_release);
  if (self->callback) ended_.push_back(std::move(self));
}

// Fails all submissions. The queue is unusable from here on.
void SetQueue::Break(const std::exception_ptr& error) {
  broken_ = error;
  std::vector<std::shared_ptr<Submission>> submissions;  // a group is here once per part
  for (const Part* part : table_.MyParts()) submissions.push_back(part->submission->self);
  for (const auto& submission : submissions) {
    if (submission->done.load(std::memory_order_relaxed)) continue;
    submission->error = error;
    End(*submission);
  }
  if (join_ != nullptr) {
    join_->error = error;
    End(*join_);
    join_ = nullptr;
  }
}

bool SetQueue::IsIdle() const {
  std::lock_guard lock(mutex_);
  return join_ == nullptr && submitted_ == 0;
}

bool SetQueue::HasNews() const {
  std::lock_guard lock(mutex_);
  return table_.HasNews();
}

void SetQueue::Close() {
  {
    std::lock_guard lock(mutex_);
    if (broken_ != nullptr) return;
    Break(std::make_exception_ptr(Error(
        ErrorCode::kInvalidArgument, "the named queue was destroyed before the work was done")));
  }
  CallBack();
}

// --- stalls -------------------------------------------------------------------------------------
//
// A rank gives up a tensor that it has submitted if the time limit passes or a missing rank has
// left. It announces this in a round. All ranks that have submitted the tensor get the error, which
// names the missing ranks. The queue continues. The round needs an answer from all ranks. If a rank
// does not answer, the round stalls. Then the engine reports the stall and finally gives up, which
// breaks the queue.

base::TimePoint SetQueue::Look(base::TimePoint now) {
  std::lock_guard lock(mutex_);
  if (looked_ != base::TimePoint()) patience_ += std::min(now - looked_, kLongestLook);
  looked_ = now;
  if (broken_ != nullptr) return base::TimePoint::max();
  round_.SetPurpose([queue = weak_from_this()] {
    const auto alive = queue.lock();
    return alive == nullptr ? std::string() : alive->DescribePending();
  });
  base::Duration left = LookForOthers();
  for (const Tensor* tensor : table_.pending()) {
    const bool mine = tensor->mine != nullptr && tensor->announced[static_cast<size_t>(rank_)] != 0;
    if (mine)
      left = std::min(left, LookAt(tensor->mine->others, table_.MissingOf(*tensor), tensor));
  }
  if (join_ != nullptr) left = std::min(left, LookAt(not_joined_, table_.NotJoined(), nullptr));
  return left == base::Duration::max() ? base::TimePoint::max() : now + left;
}

// An idle rank answers a round of other ranks after kAnswerAfter, so that they know that it is
// alive.
base::Duration SetQueue::LookForOthers() {
  answers_ = false;
  if (round_.under_way() || submitted_ > 0 || !round_.MayBeAwaited()) {
    awaited_since_ = base::Duration(-1);
    return base::Duration::max();
  }
  if (awaited_since_ < base::Duration(0)) awaited_since_ = patience_;
  const base::Duration waited = patience_ - awaited_since_;
  answers_ = waited >= kAnswerAfter;
  return answers_ ? base::Duration::max() : kAnswerAfter - waited;
}

// Returns the first of these ranks that has left, and so will never submit the tensor.
std::optional<int> SetQueue::FirstLeaver(const std::vector<int>& ranks) const {
  const std::vector<int>& leavers = engine_.leavers();
  if (leavers.empty()) return std::nullopt;
  for (const int rank : ranks) {
    const int in_world = table_.members().world_ranks[static_cast<size_t>(rank)];
    if (std::find(leavers.begin(), leavers.end(), in_world) != leavers.end()) return rank;
  }
  return std::nullopt;
}

// Warns or gives up if it is time. `tensor` is null for a join. Returns the time until the next
// look.
base::Duration SetQueue::LookAt(
    OthersAwaited& others, const std::vector<int>& missing, const Tensor* tensor) {
  if (others.withdrawn) return base::Duration::max();
  if (others.since < base::Duration(0)) others.since = patience_;
  const base::Duration waited = patience_ - others.since;
  base::Duration left = settings_.timeout - waited;
  const std::optional<int> leaver = FirstLeaver(missing);
  if (leaver) {
    if (others.deserted < base::Duration(0)) others.deserted = patience_;
    const base::Duration patience = engine_.PatienceWith(table_.members(), {*leaver});
    left = std::min(left, others.deserted + patience - patience_);
  }
  if (left <= base::Duration(0)) {
    others.withdrawn = true;
    table_.Withdraw(tensor, {.after_s = Seconds(waited), .leaver = leaver});
    return base::Duration(0);
  }
  if (!others.warned && waited >= settings_.stall_warning) {
    others.warned = true;
    log_(
        base::LogLevel::kWarning,
        Text(
            "waiting for ", Seconds(waited),
            " s: ", tensor != nullptr ? table_.DescribeWait(*tensor) : table_.DescribeJoin()));
  }
  return others.warned ? left : std::min(left, settings_.stall_warning - waited);
}

// Names some submissions of this rank that are not done, announced or not.
std::string SetQueue::DescribePending() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Part* part : table_.MyParts()) {
    if (names.size() == kMostNames) {
      names.push_back("...");
      break;
    }
    names.push_back(
        Text("'", part->tensor->name, "', ", Describe(*part->request, table_.members())));
  }
  if (join_ != nullptr) names.push_back("a join");
  return names.empty() ? "the named queue answers another rank"
                       : Text("of the named queue, which has under way ", base::Join(names, "; "));
}

}  // namespace dtrun::runtime::named

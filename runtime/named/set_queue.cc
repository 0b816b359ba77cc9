// Ranks agree in rounds. In a round every rank tells every other what it has submitted since the
// last one, and each then knows, by the same table, what all have submitted: that is done, in the
// same order everywhere. A round is one all-gather of a small record per rank; what does not fit
// follows in a second one. A rank takes part when it has news, or when it waits for those of others
// and another rank has begun: so a round happens only when there are news. There is no coordinator
// and no clock.
//
// Rounds and data have communicators of their own, so that ranks talk while data moves. Data starts
// in the order of the rounds, on all ranks alike.
//
// A burst of submissions is told in few rounds: a submission that nobody waits for yet is told when
// as many have come since the last round that a submission began as had come until then. So the
// first goes at once, and a thousand take ten rounds. Whoever waits, or drives progress in another
// way, tells everything.

#include "runtime/named/set_queue.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime::named {
namespace {

using base::Text;

// As much is worth a round of its own.
constexpr uint64_t kBurstBytes = 1 << 20;
constexpr base::Duration kAnswerAfter = std::chrono::milliseconds(100);
// Of tensors in a report of a stall.
constexpr size_t kMostNames = 6;
// A longer pause between two looks was spent elsewhere, or the process was stopped: no patience
// was lost in it.
constexpr base::Duration kLongestLook = std::chrono::seconds(1);

int64_t Seconds(base::Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

std::exception_ptr ErrorOf(const Refusal& refusal) {
  return std::make_exception_ptr(Error(refusal.code, refusal.text));
}

}  // namespace

SetQueue::SetQueue(
    ops::Communicator& communicator, ops::Engine& engine, base::LogSink log,
    const Settings& settings)
    : engine_(engine),
      log_(std::move(log)),
      settings_(settings),
      rounds_(communicator.Duplicate()),
      data_(communicator.Duplicate()),
      adasum_(*data_, engine),
      pieces_(data_->Allocate(kPieces * settings.batch_bytes)),
      rank_(communicator.rank()),
      size_(communicator.size()),
      rings_(rounds_->RingsWhenAwaited()),
      table_(rounds_->members(), rank_, settings.cache_capacity) {
  records_->mine.resize(kRecordBytes);
  records_->all.resize(kRecordBytes * static_cast<size_t>(size_));
}

SetQueue::~SetQueue() {
  // Peers may still read or write what is under way.
  for (Moving& moving : moving_) {
    if (moving.own_memory != nullptr) ops::Keep(std::move(moving.own_memory));
  }
  if (!moving_.empty()) ops::Keep(std::move(pieces_));
  if (phase_ != Phase::kIdle) ops::Keep(std::move(records_));
}

// --- submitting ---------------------------------------------------------------------------------

void SetQueue::CheckUsable() const {
  if (broken_ != nullptr) std::rethrow_exception(broken_);
  if (join_ == nullptr) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "this rank has joined: it can submit again when the join is done");
}

void SetQueue::CheckNew(const std::vector<Submitted>& tensors) const {
  if (tensors.size() == 1) return;
  std::vector<std::string_view> names;
  for (const Submitted& submitted : tensors) names.push_back(submitted.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("tensor '", *twice, "' is twice in a group; expected different names"));
}

// Refuses all of them if one is under way.
void SetQueue::FindTensors(std::vector<Submitted>& tensors) {
  for (Submitted& submitted : tensors) {
    submitted.tensor = &table_.At(submitted.name);
    if (submitted.tensor->mine == nullptr) continue;
    for (Submitted& other : tensors) {
      if (other.tensor != nullptr) table_.Release(*other.tensor);
    }
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "tensor '", submitted.name,
            "' is under way: it was submitted before and is not done; expected another name, or a "
            "wait before",
            tensors.size() > 1 ? "; nothing of the group was submitted" : ""));
  }
}

std::shared_ptr<Submission> SetQueue::Submit(std::vector<Submitted> tensors, Callback callback) {
  CheckNew(tensors);
  auto submission = std::make_shared<Submission>();
  submission->parts.resize(tensors.size());
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
      bytes += tensors[i].request.bytes();
      // What is asked for as before is told by a number.
      const auto& before = tensor.requests->by_rank[static_cast<size_t>(rank_)];
      part.request = before != nullptr && *before == tensors[i].request
                         ? before
                         : std::make_shared<const Request>(std::move(tensors[i].request));
      tensor.mine = &part;
      table_.Announce(part);
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
  auto submission = std::make_shared<Submission>();
  submission->callback = std::move(callback);
  {
    std::lock_guard lock(mutex_);
    CheckUsable();
    join_ = submission;
    join_since_ = base::Duration(-1);
    join_warned_ = join_withdrawn_ = false;
    submission->self = submission;
    table_.AnnounceJoin();
  }
  Drive(true);
  return submission;
}

bool SetQueue::WantsToAnnounceNow(uint64_t bytes) {
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

bool SetQueue::Test(const Submission& submission) {
  {
    std::lock_guard lock(mutex_);
    held_ = held_bytes_ = 0;
    held_most_ = 1;
  }
  if (submission.done.load(std::memory_order_acquire)) return true;
  engine_.Poll();
  return submission.done.load(std::memory_order_acquire);
}

void SetQueue::Wait(const Submission& submission) {
  {
    std::lock_guard lock(mutex_);
    held_ = held_bytes_ = 0;
    held_most_ = 1;
  }
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

// Without the lock: a callback may submit.
void SetQueue::CallBack() {
  std::vector<std::shared_ptr<Submission>> ended;
  {
    std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (const auto& submission : ended) {
    if (submission->callback) submission->callback(submission);
  }
}

bool SetQueue::Step() {
  bool advanced = FinishTransfers();
  advanced |= StartTransfers();
  if (phase_ != Phase::kIdle) return ContinueRound() || advanced;
  if (!TakesPart()) return advanced;
  BeginRound();
  return true;
}

// In the rounds of others when something here depends on their news. Otherwise nothing of theirs
// can be done before this rank has news of its own, and it waits for these: so a step in which
// every rank submits the same takes one round, however late each is.
bool SetQueue::TakesPart() const {
  if (table_.HasNews()) return true;
  const bool depends = table_.my_pending() > 0 || join_ != nullptr;
  return (depends || answers_) && rounds_->MayBeAwaited();
}

void SetQueue::BeginRound() {
  held_ = held_bytes_ = 0;
  const std::string& news = table_.TakeNews();
  const auto bytes = static_cast<uint32_t>(news.size());
  std::memcpy(records_->mine.data(), &bytes, kHeadBytes);
  std::memcpy(records_->mine.data() + kHeadBytes, news.data(), std::min(news.size(), kInRecord));
  records_->rest = news.size() > kInRecord ? news.substr(kInRecord) : "";
  round_ = rounds_->StartAllGather(
      Buffer(records_->mine.data(), records_->mine.size(), DType::kU8),
      Buffer(records_->all.data(), records_->all.size(), DType::kU8));
  round_has_purpose_ = answers_ = false;
  phase_ = Phase::kGathering;
}

bool SetQueue::ContinueRound() {
  if (!round_.Done()) return false;
  const auto p = static_cast<size_t>(size_);
  std::vector<uint64_t> rests(p);
  std::vector<std::string_view> news(p);
  bool more = false;
  for (size_t r = 0; r < p; ++r) {
    const char* record = records_->all.data() + r * kRecordBytes;
    uint32_t bytes = 0;
    std::memcpy(&bytes, record, kHeadBytes);
    news[r] = std::string_view(record + kHeadBytes, std::min<size_t>(bytes, kInRecord));
    rests[r] = bytes - news[r].size();
    more |= rests[r] > 0;
  }
  if (!more) {
    EndRound(news);
    return true;
  }
  uint64_t all = 0;
  for (const uint64_t bytes : rests) all += bytes;
  if (phase_ == Phase::kGathering) {
    records_->rests.resize(all);
    round_ = rounds_->StartAllGather(
        Buffer(records_->rest.data(), records_->rest.size(), DType::kU8),
        Buffer(records_->rests.data(), all, DType::kU8), rests);
    phase_ = Phase::kGatheringRest;
    return true;
  }
  std::vector<std::string> whole(p);
  size_t begin = 0;
  for (size_t r = 0; r < p; ++r) {
    whole[r] = std::string(news[r]) + records_->rests.substr(begin, rests[r]);
    news[r] = whole[r];
    begin += rests[r];
  }
  EndRound(news);
  return true;
}

void SetQueue::EndRound(const std::vector<std::string_view>& news) {
  phase_ = Phase::kIdle;
  join_since_ = base::Duration(-1);  // others go on
  Follow(table_.Apply(news));
}

void SetQueue::Follow(Outcome outcome) {
  for (const Failed& failed : outcome.failed) FailPart(*failed.part, ErrorOf(failed.refusal));
  for (const Ready& ready : outcome.ready) {
    const bool barrier = ready.request().kind == Kind::kBarrier;
    if (barrier && ready.tensor != nullptr) FinishPart(*ready.tensor->mine);
  }
  for (Batch& batch : PlanBatches(outcome.ready, size_, settings_.batch_bytes)) {
    moving_.push_back({.transfer = Transfer(std::move(batch), rank_, size_)});
  }
  if (outcome.last_joined && join_ != nullptr) {
    join_->last_joined = *outcome.last_joined;
    End(*join_);
    join_ = nullptr;
  }
  if (outcome.join_refused && join_ != nullptr) {
    join_->error = ErrorOf(*outcome.join_refused);
    End(*join_);
    join_ = nullptr;
  }
}

// In order, and each as soon as there is memory for it.
bool SetQueue::StartTransfers() {
  bool advanced = false;
  for (; started_ < moving_.size(); ++started_) {
    Moving& moving = moving_[started_];
    const uint64_t bytes = moving.transfer.memory_bytes();
    char* memory = nullptr;
    if (bytes > settings_.batch_bytes) {
      moving.own_memory = ops::AllocatePrivate(bytes);
      memory = static_cast<char*>(moving.own_memory->data());
    } else if (bytes > 0) {
      if (pieces_taken_ == kPieces) break;
      ++pieces_taken_;
      moving.has_piece = true;
      memory = static_cast<char*>(pieces_->data()) + next_piece_ * settings_.batch_bytes;
      next_piece_ = (next_piece_ + 1) % kPieces;
    }
    moving.started = true;
    moving.transfer.Start(*data_, adasum_, memory);
    advanced = true;
  }
  return advanced;
}

// In order as well: the pieces of memory go round.
bool SetQueue::FinishTransfers() {
  bool advanced = false;
  while (started_ > 0 && moving_.front().transfer.Done()) {
    Moving& moving = moving_.front();
    moving.transfer.Finish();
    for (const Item& item : moving.transfer.batch()) {
      if (item.part != nullptr) FinishPart(*item.part);
    }
    if (moving.has_piece) --pieces_taken_;
    moving_.pop_front();
    --started_;
    advanced = true;
  }
  return advanced;
}

// --- ends ---------------------------------------------------------------------------------------

void SetQueue::FinishPart(Part& part) {
  Submission& submission = *part.submission;
  if (--submission.unfinished == 0) End(submission);
}

// The other tensors of its group fail with it: by the table, or they are the same error's.
void SetQueue::FailPart(Part& part, const std::exception_ptr& error) {
  Submission& submission = *part.submission;
  if (submission.error == nullptr) submission.error = error;
  FinishPart(part);
}

void SetQueue::End(Submission& submission) {
  // All of its names are free from here on.
  submitted_ -= submission.parts.size();
  for (Part& part : submission.parts) {
    Tensor* const tensor = std::exchange(part.tensor, nullptr);
    tensor->mine = nullptr;
    table_.Release(*tensor);
  }
  ended_.push_back(std::move(submission.self));
  submission.done.store(true, std::memory_order_release);
}

// Nothing works after this.
void SetQueue::Break(const std::exception_ptr& error) {
  broken_ = error;
  for (Part* part : table_.MyParts()) {
    Submission& submission = *part->submission;
    if (submission.done.load(std::memory_order_relaxed)) continue;
    submission.error = error;
    End(submission);
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

void SetQueue::Close() {
  {
    std::lock_guard lock(mutex_);
    if (broken_ != nullptr) return;
    Break(std::make_exception_ptr(
        Error(ErrorCode::kInvalidArgument, "the named queue was destroyed before this was done")));
  }
  CallBack();
}

// --- stalls -------------------------------------------------------------------------------------
//
// A tensor that some rank does not submit is given up by a rank that has: it tells the others, and
// all that have submitted it get the error, which names who has not. The queue goes on. That takes
// a round, so it needs all ranks to be there. A rank that is not there holds up a round, and then
// the engine reports that, and gives up in the end, which breaks the queue.

base::TimePoint SetQueue::Look(base::TimePoint now) {
  std::lock_guard lock(mutex_);
  if (looked_ != base::TimePoint()) patience_ += std::min(now - looked_, kLongestLook);
  looked_ = now;
  if (broken_ != nullptr) return base::TimePoint::max();
  if (phase_ != Phase::kIdle && !round_has_purpose_) {
    round_has_purpose_ = true;
    round_.SetPurpose([queue = weak_from_this()] {
      const auto alive = queue.lock();
      return alive == nullptr ? std::string() : alive->DescribePending();
    });
  }
  base::Duration left = LookForOthers();
  for (const Tensor* tensor : table_.pending()) {
    const bool mine = tensor->mine != nullptr && tensor->announced[static_cast<size_t>(rank_)] != 0;
    if (mine) left = std::min(left, LookAtTensor(*tensor));
  }
  if (join_ != nullptr) left = std::min(left, LookAtJoin());
  return left == base::Duration::max() ? base::TimePoint::max() : now + left;
}

// A rank on which nothing depends answers in the end, so that the others know that it is there.
base::Duration SetQueue::LookForOthers() {
  answers_ = false;
  if (phase_ != Phase::kIdle || submitted_ > 0 || !rounds_->MayBeAwaited()) {
    awaited_since_ = base::Duration(-1);
    return base::Duration::max();
  }
  if (awaited_since_ < base::Duration(0)) awaited_since_ = patience_;
  const base::Duration waited = patience_ - awaited_since_;
  answers_ = waited >= kAnswerAfter;
  return answers_ ? base::Duration::max() : kAnswerAfter - waited;
}

// Returns how long it has until something is to be done about it.
base::Duration SetQueue::LookAtTensor(const Tensor& tensor) {
  Part& part = *tensor.mine;
  if (part.withdrawn) return base::Duration::max();
  if (part.since < base::Duration(0)) part.since = patience_;
  const base::Duration waited = patience_ - part.since;
  if (waited >= settings_.timeout) {
    part.withdrawn = true;
    table_.Withdraw(&tensor, Seconds(waited));
    return base::Duration(0);
  }
  if (!part.warned && waited >= settings_.stall_warning) {
    part.warned = true;
    log_(
        base::LogLevel::kWarning,
        Text("waiting for ", Seconds(waited), " s: ", table_.DescribeWait(tensor)));
  }
  return (part.warned ? settings_.timeout : std::min(settings_.stall_warning, settings_.timeout)) -
         waited;
}

base::Duration SetQueue::LookAtJoin() {
  if (join_withdrawn_) return base::Duration::max();
  if (join_since_ < base::Duration(0)) join_since_ = patience_;
  const base::Duration waited = patience_ - join_since_;
  if (waited >= settings_.timeout) {
    join_withdrawn_ = true;
    table_.Withdraw(nullptr, Seconds(waited));
    return base::Duration(0);
  }
  if (!join_warned_ && waited >= settings_.stall_warning) {
    join_warned_ = true;
    log_(
        base::LogLevel::kWarning,
        Text("waiting for ", Seconds(waited), " s: ", table_.DescribeJoin()));
  }
  return (join_warned_ ? settings_.timeout : std::min(settings_.stall_warning, settings_.timeout)) -
         waited;
}

// What this rank has told, or will, that is not done: the oldest of it.
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

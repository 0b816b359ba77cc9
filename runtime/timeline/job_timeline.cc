// The engine and the reducers tell a Tracer their events, and the Tracer writes them into the
// active buffer. When the program stops a timeline, rank 0 gathers the buffers of all ranks and
// writes them to one file. The ranks of a host share a clock. When the timeline starts, rank 0
// compares its clock with the clock of the first rank on each other host.

#include "runtime/timeline/job_timeline.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "base/trace_json.h"
#include "dtrun/error.h"
#include "ops/engine/flight_recorder.h"

namespace dtrun::runtime {
namespace {

using base::Text;
using base::TraceType;

constexpr int kClockLooks = 8;
constexpr uint64_t kMostAtOnce = 1 << 20;  // bytes

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

base::TimePoint Now() { return std::chrono::steady_clock::now(); }
int64_t NowNs() { return Now().time_since_epoch() / std::chrono::nanoseconds(1); }

// Throws the first error of any rank on all ranks.
void ShareError(ops::Communicator& communicator, const std::string& mine) {
  for (const std::string& error : ops::AllGatherBytes(communicator, mine))
    if (!error.empty()) throw Error(ErrorCode::kSystem, error);
}

// Measures how far the clock of `peer` is ahead of this rank's clock. `peer` calls ShowClock. The
// fastest of kClockLooks answers counts.
base::ClockOffset LookAtClockOf(ops::Communicator& communicator, int peer) {
  base::ClockOffset best = {.uncertainty_ns = INT64_MAX};
  for (int i = 0; i < kClockLooks; ++i) {
    int64_t theirs = 0;
    ops::Work answer = communicator.StartReceive(Buffer(&theirs, 1), peer);
    const int64_t asked = NowNs();
    int64_t question = i;
    communicator.StartSend(Buffer(&question, 1), peer).Wait();
    answer.Wait();
    const int64_t half = (NowNs() - asked) / 2;
    if (half < best.uncertainty_ns) best = {theirs - (asked + half), half};
  }
  return best;
}

void ShowClock(ops::Communicator& communicator, int peer) {
  for (int i = 0; i < kClockLooks; ++i) {
    int64_t question = 0;
    communicator.StartReceive(Buffer(&question, 1), peer).Wait();
    int64_t mine = NowNs();
    communicator.StartSend(Buffer(&mine, 1), peer).Wait();
  }
}

// The clock offset of each rank. Only rank 0 knows it.
std::vector<base::ClockOffset> MeasureClocks(
    ops::Communicator& communicator, const std::vector<int>& host_of_rank) {
  std::map<int, int> first_rank;  // by host
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank)
    first_rank.try_emplace(host_of_rank[rank], static_cast<int>(rank));
  std::map<int, base::ClockOffset> by_host;
  for (const auto& [host, rank] : first_rank) {
    if (rank == 0) continue;
    if (communicator.rank() == 0) by_host[host] = LookAtClockOf(communicator, rank);
    if (communicator.rank() == rank) ShowClock(communicator, 0);
  }
  std::vector<base::ClockOffset> by_rank;
  for (const int host : host_of_rank) by_rank.push_back(by_host[host]);
  return by_rank;
}

}  // namespace

// Writes down the actions of the engine and the reducers of a rank.
class Timeline::Tracer : public ops::OperationObserver {
 public:
  explicit Tracer(int launch_rank) : launch_rank_(launch_rank) {}

  // During this call, other threads may call this object only if they find no buffer on. Buffers
  // live as long as this object, because a thread may be in the middle of a record.
  void WriteTo(std::shared_ptr<TraceBuffer> buffer) {
    std::lock_guard lock(mutex_);
    if (std::find(buffers_.begin(), buffers_.end(), buffer) == buffers_.end())
      buffers_.push_back(buffer);
    communicators_.clear();
    ++session_;
    buffer_.store(buffer.get(), std::memory_order_release);
    buffer->TurnOn();
    for (const auto& [id, names] : reducers_) WriteNames(*buffer, id, names);
  }

  TraceBuffer* buffer() const {
    TraceBuffer* buffer = buffer_.load(std::memory_order_acquire);
    return buffer != nullptr && buffer->on() ? buffer : nullptr;
  }

  uint32_t AddReducer(std::vector<std::string> names) {
    std::lock_guard lock(mutex_);
    const uint32_t id = ++last_reducer_;
    if (TraceBuffer* buffer = this->buffer()) WriteNames(*buffer, id, names);
    reducers_[id] = std::move(names);
    return id;
  }
  // Differs between two calls if the buffer has been emptied or replaced between them.
  uint32_t session() const { return session_.load(std::memory_order_relaxed); }
  uint32_t NewTensor() { return last_tensor_.fetch_add(1, std::memory_order_relaxed) + 1; }

  void RemoveReducer(uint32_t id) {
    std::lock_guard lock(mutex_);
    reducers_.erase(id);
  }

  void Started(uint64_t number, const ops::Operation& operation, base::TimePoint now) override {
    TraceBuffer* buffer = this->buffer();
    if (buffer == nullptr) return;
    uint64_t call[sizeof(base::Call) / sizeof(uint64_t)];
    std::memcpy(call, &operation.call(), sizeof call);
    const Place place = PlaceOf(*buffer, operation.members());
    buffer->Add(
        TraceType::kStarted, static_cast<uint32_t>(number),
        {TraceTime(now), operation.sequence(), call[0], call[1], call[2], call[3], call[4],
         uint64_t{place.communicator} << 32 | place.own_rank});
    static_assert(std::size(call) == 5);
  }

  void Ended(uint64_t number, base::TimePoint arrived, base::TimePoint now, bool failed) override {
    if (TraceBuffer* buffer = this->buffer())
      buffer->Add(
          TraceType::kEnded, static_cast<uint32_t>(number),
          {TraceTime(now), TraceTime(arrived), failed ? uint64_t{1} : uint64_t{0}});
  }

 private:
  struct Place {
    uint32_t communicator, own_rank;
  };

  // Only the engine calls it, one call at a time. The lock protects it from WriteTo.
  Place PlaceOf(TraceBuffer& buffer, const ops::Members& members) {
    std::lock_guard lock(mutex_);
    const auto number = static_cast<uint32_t>(communicators_.size());
    const auto [found, is_new] = communicators_.try_emplace(members.name, Place{number, 0});
    if (!is_new) return found->second;
    const auto& ranks = members.world_ranks;
    found->second.own_rank =
        static_cast<uint32_t>(std::find(ranks.begin(), ranks.end(), launch_rank_) - ranks.begin());
    buffer.AddText(TraceType::kCommunicator, number, {}, members.name);
    return found->second;
  }

  static void WriteNames(TraceBuffer& buffer, uint32_t id, const std::vector<std::string>& names) {
    for (size_t i = 0; i < names.size(); ++i)
      buffer.AddText(
          TraceType::kGradient, 0, {uint64_t{id} << 32 | static_cast<uint32_t>(i)}, names[i]);
  }

  int launch_rank_;
  std::atomic<TraceBuffer*> buffer_{nullptr};
  std::mutex mutex_;
  std::vector<std::shared_ptr<TraceBuffer>> buffers_;
  std::map<std::string, Place> communicators_;
  std::map<uint32_t, std::vector<std::string>> reducers_;
  uint32_t last_reducer_ = 0;
  std::atomic<uint32_t> session_{0}, last_tensor_{0};
};

// A timeline that the program has started and will stop.
struct Timeline::Session {
  std::string path;
  File file;                              // null except on rank 0
  std::vector<base::ClockOffset> clocks;  // by rank; known to rank 0 only
};

Timeline::Timeline(TraceBuffer::Owner owner, ops::Engine& engine)
    : owner_(std::move(owner)), engine_(engine), tracer_(std::make_shared<Tracer>(owner_.rank)) {}

Timeline::~Timeline() { engine_.SetObserver(nullptr); }

std::unique_ptr<ReducerObserver> Timeline::ObserveReducer(std::vector<std::string> gradients) {
  class Observer : public ReducerObserver {
   public:
    Observer(std::shared_ptr<Tracer> tracer, std::vector<std::string> gradients)
        : tracer_(std::move(tracer)), id_(tracer_->AddReducer(std::move(gradients))) {}
    ~Observer() override { tracer_->RemoveReducer(id_); }
    void Marked(size_t gradient) override {
      if (TraceBuffer* buffer = tracer_->buffer())
        buffer->AddMark(id_, static_cast<uint32_t>(gradient), Now());
    }
    void BucketStarts(size_t bucket) override {
      if (TraceBuffer* buffer = tracer_->buffer())
        buffer->Add(TraceType::kBucket, 0, {uint64_t{id_} << 32 | static_cast<uint32_t>(bucket)});
    }
    void WaitBegins() override { Write(TraceType::kWaitBegins); }
    void WaitEnds() override { Write(TraceType::kWaitEnds); }

   private:
    void Write(TraceType type) {
      if (TraceBuffer* buffer = tracer_->buffer()) buffer->Add(type, id_, {TraceTime(Now())});
    }

    std::shared_ptr<Tracer> tracer_;
    uint32_t id_;
  };
  return std::make_unique<Observer>(tracer_, std::move(gradients));
}

std::unique_ptr<TensorObserver> Timeline::ObserveTensors(std::string set) {
  class Observer : public TensorObserver {
   public:
    Observer(std::shared_ptr<Tracer> tracer, std::string set)
        : tracer_(std::move(tracer)), behind_(set.empty() ? "" : Text(" (", set, ")")) {}
    void Submitted(std::string_view name) override {
      if (TraceBuffer* buffer = tracer_->buffer())
        buffer->Add(TraceType::kSubmitted, NumberOf(*buffer, name), {TraceTime(Now())});
    }
    void Agreed(std::string_view name) override {
      if (TraceBuffer* buffer = tracer_->buffer())
        buffer->Add(TraceType::kAgreed, NumberOf(*buffer, name), {TraceTime(Now())});
    }
    void Ended(std::string_view name, bool failed) override {
      if (TraceBuffer* buffer = tracer_->buffer())
        buffer->Add(
            TraceType::kTensorEnds, NumberOf(*buffer, name),
            {TraceTime(Now()), failed ? uint64_t{1} : uint64_t{0}});
    }

   private:
    struct Hash {
      using is_transparent = void;
      size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
    };

    // A trace has each name once, before the first record with its number.
    uint32_t NumberOf(TraceBuffer& buffer, std::string_view name) {
      if (const uint32_t now = tracer_->session(); now != std::exchange(session_, now))
        numbers_.clear();
      if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
      const uint32_t number = tracer_->NewTensor();
      numbers_.emplace(name, number);
      buffer.AddText(TraceType::kTensor, number, {}, std::string(name) + behind_);
      return number;
    }

    std::shared_ptr<Tracer> tracer_;
    std::string behind_;
    std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> numbers_;
    uint32_t session_ = 0;
  };
  return std::make_unique<Observer>(tracer_, std::move(set));
}

void Timeline::StartInFile(const std::string& path) {
  in_file_ = true;  // on every rank, even if there is no room for the file
  tracer_->WriteTo(TraceBuffer::InFile(path, owner_));
  engine_.SetObserver(tracer_);
}

void Timeline::Start(
    ops::Communicator& world, const std::vector<int>& host_of_rank, const std::string& path) {
  if (in_file_)
    throw Error(
        ErrorCode::kInvalidArgument,
        "StartTimeline: dtrun --timeline writes the timeline of this job already");
  if (session_ != nullptr)
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "StartTimeline: a timeline is already being written, to '",
                                         session_->path, "'; call StopTimeline() first"));
  if (communicator_ == nullptr) communicator_ = world.Duplicate();
  auto session = std::make_unique<Session>();
  session->path = path;
  std::string error;
  if (world.rank() == 0) {
    session->file.reset(std::fopen(path.c_str(), "we"));
    if (session->file == nullptr)
      error = Text("StartTimeline: cannot write '", path, "': ", std::strerror(errno));
  }
  try {
    if (memory_ == nullptr) memory_ = TraceBuffer::InMemory(owner_);
  } catch (const Error& no_memory) {
    if (error.empty()) error = Text("StartTimeline: rank ", world.rank(), ": ", no_memory.what());
  }
  ShareError(*communicator_, error);
  session->clocks = MeasureClocks(*communicator_, host_of_rank);
  session_ = std::move(session);
  tracer_->WriteTo(memory_);
  engine_.SetObserver(tracer_);
}

void Timeline::Stop() {
  if (session_ == nullptr)
    throw Error(
        ErrorCode::kInvalidArgument, in_file_
                                         ? "StopTimeline: the timeline of dtrun --timeline ends "
                                           "with the job; expected a timeline of StartTimeline"
                                         : "StopTimeline: no timeline is being written");
  engine_.SetObserver(nullptr);
  memory_->TurnOff();
  const std::unique_ptr<Session> session = std::move(session_);
  const std::vector<std::string> traces = GatherTraces();
  std::string error;
  if (communicator_->rank() == 0) error = WriteTimeline(*session, traces);
  memory_->Clear();
  ShareError(*communicator_, error);
}

// On rank 0, returns the trace of every rank. On other ranks, all traces are empty.
std::vector<std::string> Timeline::GatherTraces() {
  uint64_t mine = memory_->used_bytes();
  std::vector<uint64_t> sizes(static_cast<size_t>(communicator_->size()));
  communicator_->AllGather(Buffer(&mine, 1), Buffer(sizes.data(), sizes.size()));
  std::vector<std::string> traces(sizes.size());
  auto* own = static_cast<char*>(const_cast<void*>(memory_->data()));
  const auto for_pieces = [](uint64_t bytes, const auto& use) {
    for (uint64_t begin = 0; begin < bytes; begin += kMostAtOnce)
      use(begin, std::min(kMostAtOnce, bytes - begin));
  };
  if (communicator_->rank() != 0) {
    for_pieces(mine, [&](uint64_t begin, uint64_t count) {
      communicator_->StartSend(Buffer(own + begin, count, DType::kU8), 0).Wait();
    });
    return traces;
  }
  traces[0].assign(own, mine);
  for (size_t rank = 1; rank < sizes.size(); ++rank) {
    traces[rank].resize(sizes[rank]);
    for_pieces(sizes[rank], [&](uint64_t begin, uint64_t count) {
      const Buffer piece(traces[rank].data() + begin, count, DType::kU8);
      communicator_->StartReceive(piece, static_cast<int>(rank)).Wait();
    });
  }
  return traces;
}

// Returns the error, or "".
std::string Timeline::WriteTimeline(Session& session, const std::vector<std::string>& traces) {
  std::vector<base::TraceSource> sources;
  for (size_t rank = 0; rank < traces.size(); ++rank)
    sources.push_back(
        {session.clocks[rank], [&trace = traces[rank]] {
           std::vector<base::TraceSlot> aligned(trace.size() / sizeof(base::TraceSlot) + 1);
           std::memcpy(static_cast<void*>(aligned.data()), trace.data(), trace.size());
           return base::ReadTrace(aligned.data(), trace.size());
         }});
  int error = 0;  // errno of the first failure
  base::WriteTraceJson(
      sources, {{"np", Text(communicator_->size())}}, [&](const std::string& piece) {
        if (error != 0) return;
        const size_t wrote = std::fwrite(piece.data(), 1, piece.size(), session.file.get());
        if (wrote != piece.size()) error = errno;
      });
  if (std::fclose(session.file.release()) != 0 && error == 0) error = errno;
  if (error == 0) return "";
  return Text("StopTimeline: cannot write '", session.path, "': ", std::strerror(error));
}

}  // namespace dtrun::runtime

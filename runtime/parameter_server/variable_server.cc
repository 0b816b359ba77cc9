// One thread runs one loop. It waits until a connection can be read, and receives at most one
// message from each connection. Then it applies the gradients and hands out the steps that have
// become possible, and sends as many bytes as the sockets accept.
//
// A rank on the server's host shares one block of memory with the server. The server reads the
// rank's gradients and writes the values in place, so a message is a header only. For a rank on
// another host, each side has its own block, and messages carry the halves of the block.

#include "runtime/parameter_server/variable_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/hmac_sha256.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/parameter_server/message_stream.h"

namespace dtrun::runtime {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kProofTime{5};
constexpr std::chrono::seconds kLateComers{30};
constexpr int kMostUnproven = 64;
constexpr uint64_t kMostUnprovenText = 256, kMostProvenText = uint64_t{4} << 30;
constexpr int kLookMs = 500;  // interval of the check for silent peers

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double CpuOfThread() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

struct ParameterServer::Connection {
  Connection(MessageStream connected, bool is_local)
      : stream(std::move(connected)), local(is_local) {}

  MessageStream stream;
  bool local;  // on this host
  bool proven = false, known = false, welcomed = false, gone = false, said_bye = false;
  std::string random;  // the bytes of the challenge
  int rank = -1;
  PeerRole role = PeerRole::kReader;
  std::shared_ptr<ops::Segment> memory;
  // has_step: the first server has handed out a step to it. has_pushed: it has pushed a gradient
  // since. computes: it has values for a gradient.
  bool wants_step = false, has_step = false, has_pushed = false, computes = false, pushing = false;
  uint64_t wanted_end = 0;                 // it wants a step below
  Clock::time_point since = Clock::now();  // of the connection; later, of its last step or pull
};

// ---- Life cycle ---------------------------------------------------------------------------------

ParameterServer::ParameterServer(
    const ServerJob& job, const std::vector<Tensor>& variables, const TrainingPlan& plan)
    : job_(job),
      plan_(plan),
      layout_(PlanVariables(variables, job.servers, plan.partition)),
      shards_(layout_.OfServer(job.rank)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      places_(static_cast<size_t>(job.servers)),
      gate_(plan.max_staleness),
      queue_(
          plan.first_step, plan.steps,
          plan.max_staleness && *plan.max_staleness < UINT64_MAX ? *plan.max_staleness + 1
                                                                 : UINT64_MAX) {
  if (wake_.get() < 0) ops::ThrowErrno("eventfd");
  uint64_t bytes = 0;
  for (const VariableShard& shard : shards_) {
    const Buffer& whole = variables[shard.variable].buffer;
    value_offsets_.push_back(bytes);
    dtypes_.push_back(whole.dtype);
    bytes += (shard.count * SizeOf(whole.dtype) + 63) / 64 * 64;
  }
  values_ = ops::Segment::Create(std::max<uint64_t>(bytes, 64));
  for (size_t i = 0; i < shards_.size(); ++i) {
    const VariableShard& shard = shards_[i];
    const Buffer part = variables[shard.variable].buffer.Slice(shard.first, shard.count);
    if (part.count > 0) std::memcpy(value(i).data, part.data, part.bytes());
  }
  status_.done = queue_.done();
  status_.over = queue_.over();
  local_listener_ = ListenLocally(job_.job, job_.rank);
  if (is_first() && job_.several_hosts()) {
    place_ = job_.first;
    tcp_listener_ = ops::ListenOn(place_, kListener);
  }
  if (is_first()) places_[0] = place_.Text();
}

ParameterServer::~ParameterServer() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    status_.ended = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

Buffer ParameterServer::value(size_t index) const {
  return Buffer(values_->data() + value_offsets_[index], shards_[index].count, dtypes_[index]);
}

void ParameterServer::Start(Update update, std::vector<Tensor> state) {
  update_ = std::move(update);
  state_ = std::move(state);
  thread_ = std::thread([this] { Serve(); });
}

uint64_t ParameterServer::WaitFor(uint64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return status_.error != nullptr || status_.ended ||
           (is_first() && (status_.over || status_.done >= step));
  });
  if (status_.error != nullptr) std::rethrow_exception(status_.error);
  return status_.done;
}

void ParameterServer::Finish() {
  std::unique_lock lock(mutex_);
  status_.finishing = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  changed_.wait(lock, [&] { return status_.error != nullptr || status_.ended; });
  if (status_.error != nullptr) std::rethrow_exception(status_.error);
}

ServerStatistics ParameterServer::statistics() const {
  const std::lock_guard lock(mutex_);
  return status_.statistics;
}

std::vector<uint64_t> ParameterServer::staleness() const {
  const std::lock_guard lock(mutex_);
  return status_.staleness;
}

// ---- The server's thread ------------------------------------------------------------------------

void ParameterServer::Serve() {
  try {
    if (!is_first()) JoinFirst();
    while (!ended_) ServeOnce();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    status_.error = std::current_exception();
  }
  peers_.clear();  // the remaining peers see that this server is gone
  first_ = nullptr;
  local_listener_ = ops::FileDescriptor();
  tcp_listener_ = ops::FileDescriptor();
  Publish();
  const std::lock_guard lock(mutex_);
  status_.ended = true;
  changed_.notify_all();
}

void ParameterServer::ServeOnce() {
  PollFiles();
  for (Connection& peer : peers_) HearFrom(peer);
  DropTheSilent();
  for (Connection& peer : peers_)
    if (peer.gone) Leave(peer);
  peers_.remove_if([](const Connection& peer) { return peer.gone; });
  CloseIfAllHaveLeft();
  ApplyGradients();
  HandOutSteps();
  EndIfFinished();
  for (Connection& peer : peers_) peer.gone = !peer.stream.Flush();
  Publish();
}

void ParameterServer::PollFiles() {
  std::vector<pollfd> files = {
      {wake_.get(), POLLIN, 0},
      {local_listener_.get(), POLLIN, 0},
      {tcp_listener_.get(), POLLIN, 0}};
  bool gone = false;
  for (const Connection& peer : peers_) {
    gone = gone || peer.gone;
    const int events = peer.stream.sending() ? POLLIN | POLLOUT : POLLIN;
    files.push_back({peer.stream.socket(), static_cast<short>(events), 0});
  }
  if (::poll(files.data(), files.size(), gone ? 0 : kLookMs) < 0 && errno != EINTR)
    ops::ThrowErrno("poll of a parameter server");
  uint64_t woken = 0;
  if (::read(wake_.get(), &woken, sizeof woken) > 0) {
    const std::lock_guard lock(mutex_);
    if (!finishing_ && status_.finishing) finishing_since_ = Clock::now();
    finishing_ = finishing_ || status_.finishing;
    ended_ = status_.ended;
  }
  if (files[1].revents != 0) Accept(local_listener_.get(), true);
  if (files[2].revents != 0) Accept(tcp_listener_.get(), false);
}

void ParameterServer::Publish() {
  statistics_.updates = gate_.version();
  statistics_.repeated_steps = queue_.repeated();
  statistics_.cpu_s = CpuOfThread();
  const std::lock_guard lock(mutex_);
  const bool news = status_.done != queue_.done() || status_.over != queue_.over();
  status_.done = queue_.done();
  status_.over = queue_.over();
  status_.statistics = statistics_;
  status_.staleness = gate_.histogram();
  if (news) changed_.notify_all();
}

// ---- New connections and messages ---------------------------------------------------------------

// The first server must know where this server listens for other hosts before it welcomes ranks.
void ParameterServer::JoinFirst() {
  const auto give_up = [this] {
    const std::lock_guard lock(mutex_);
    return ended_ = status_.ended;
  };
  const auto stream = VisitServer(job_, 0, job_.first, Clock::now() + job_.timeout, give_up);
  if (stream == nullptr) return;
  if (job_.several_hosts()) {
    place_.host = job_.shares_host(0) ? job_.first.host : ops::OwnAddress(stream->socket());
    tcp_listener_ = ops::ListenOn(place_, kListener);
  }
  first_ = &peers_.emplace_back(std::move(*stream), job_.shares_host(0));
  first_->proven = first_->known = true;
  first_->rank = 0;
  first_->role = PeerRole::kServer;
  first_->stream.Send(
      {.kind = MessageKind::kHello,
       .number = static_cast<uint64_t>(job_.rank),
       .value = static_cast<uint64_t>(PeerRole::kServer)},
      HelloText(layout_) + "\n" + place_.Text());
}

void ParameterServer::Accept(int listener, bool local) {
  const auto unproven = std::count_if(
      peers_.begin(), peers_.end(), [](const Connection& peer) { return !peer.proven; });
  ops::FileDescriptor socket = AcceptFrom(listener, local);
  if (socket.get() < 0 || unproven >= kMostUnproven) return;
  Connection& peer = peers_.emplace_back(MessageStream(std::move(socket)), local);
  peer.proven = local;  // the kernel has identified its user
  if (local) return;
  peer.random = ops::RandomBytes();
  peer.stream.set_most_text(kMostUnprovenText);
  peer.stream.Send({.kind = MessageKind::kChallenge}, peer.random);
}

// An error on a connection ends that connection only, except the connection to the first server.
void ParameterServer::HearFrom(Connection& peer) {
  if (peer.gone) return;
  try {
    const auto state = peer.stream.Receive([&](const MessageHeader& header) {
      const bool gradient = peer.memory != nullptr && header.kind == MessageKind::kPush;
      return gradient ? PiecesOf(peer, 0) : Pieces{};
    });
    if (state == MessageStream::State::kEnded) peer.gone = true;
    if (state == MessageStream::State::kWhole) Hear(peer);
  } catch (const Error& error) {
    if (&peer == first_) throw;
    job_.log(
        base::LogLevel::kWarning,
        peer.known ? Text(job_.Name(peer.rank), ": ", error.what())
                   : Text("a connection to this parameter server was ended: ", error.what()));
    peer.gone = true;
  }
}

void ParameterServer::Hear(Connection& peer) {
  const MessageHeader& header = peer.stream.header();
  const auto refuse = [&](const char* why) { throw Error(ErrorCode::kSystem, why); };
  if (&peer == first_) return HearFirst();
  if (!peer.proven) {
    if (header.kind != MessageKind::kProof)
      refuse("found no proof that the peer knows the secret of this job");
    return HearProof(peer);
  }
  if (!peer.known) {
    if (header.kind != MessageKind::kHello) refuse("found no rank of the peer");
    return HearHello(peer);
  }
  switch (header.kind) {
    case MessageKind::kNext:
      if (!is_first() || peer.role != PeerRole::kWorker || peer.wants_step || peer.pushing)
        refuse("found a request for a step out of turn");
      if (std::exchange(peer.has_step, false)) queue_.Done(peer.rank);
      queue_.SkipTo(header.number);
      peer.wants_step = true;
      peer.wanted_end = header.value;
      return;
    case MessageKind::kPull:
      if (peer.memory == nullptr) refuse("found no memory for values");
      return GiveValues(peer);
    case MessageKind::kPush:
      if (peer.memory == nullptr || peer.role != PeerRole::kWorker || peer.pushing)
        refuse("found a gradient out of turn");
      peer.pushing = true;
      return;
    case MessageKind::kReadState: return GiveState(peer);
    case MessageKind::kProgress: return GiveProgress(peer);
    case MessageKind::kBye: peer.said_bye = true; return;
    default: refuse("found an unknown message");
  }
}

void ParameterServer::HearFirst() {
  if (first_->stream.header().kind == MessageKind::kRefused)
    throw Error(ErrorCode::kMismatch, first_->stream.text());
  if (first_->stream.header().kind == MessageKind::kEnd) finishing_ = true;
}

void ParameterServer::HearProof(Connection& peer) {
  constexpr size_t kRandom = 32, kProof = 32;
  const std::string& text = peer.stream.text();
  const std::string both = peer.random + text.substr(0, kRandom);
  if (text.size() != kRandom + kProof ||
      !base::EqualInConstantTime(text.substr(kRandom), ClientProof(job_.secret, both)))
    throw Error(ErrorCode::kSystem, "the peer does not know the secret of this job");
  peer.proven = true;
  peer.stream.set_most_text(kMostProvenText);
  peer.stream.Send({.kind = MessageKind::kProven}, ServerProof(job_.secret, both));
}

void ParameterServer::HearHello(Connection& peer) {
  const std::string hello = peer.stream.text();
  peer.rank = static_cast<int>(std::min<uint64_t>(peer.stream.header().number, INT_MAX));
  peer.role = static_cast<PeerRole>(peer.stream.header().value);
  // A refused peer counts as seen.
  if (peer.role == PeerRole::kWorker) workers_seen_.insert(peer.rank);
  if (peer.role == PeerRole::kReader && peer.rank >= job_.servers) readers_seen_.insert(peer.rank);
  if (const std::string why = WhyRefused(peer, hello); !why.empty()) {
    peer.stream.Send({.kind = MessageKind::kRefused}, why);
    peer.stream.Flush();
    throw Error(ErrorCode::kMismatch, "refused: " + why);
  }
  peer.known = true;
  if (peer.role == PeerRole::kServer)
    places_[static_cast<size_t>(peer.rank)] = hello.substr(hello.rfind('\n') + 1);
  else
    AdoptMemory(peer);
  Welcome();
}

// Returns the reason to refuse a peer: a rank that does not exist, or the first line of the hello
// that differs. "": accepted.
std::string ParameterServer::WhyRefused(const Connection& peer, const std::string& hello) const {
  const bool server = peer.role == PeerRole::kServer;
  if (peer.rank >= job_.size || peer.role > PeerRole::kServer ||
      (server && (!is_first() || peer.rank < 1 || peer.rank >= job_.servers)))
    return Text("rank ", peer.rank, " does not exist");
  std::vector<std::string> theirs = base::Split(hello, '\n');
  const std::vector<std::string> own = base::Split(HelloText(layout_), '\n');
  if (server) theirs.pop_back();
  for (size_t i = 0; i < std::max(theirs.size(), own.size()); ++i) {
    const std::string a = i < own.size() ? own[i] : "nothing";
    const std::string b = i < theirs.size() ? theirs[i] : "nothing";
    if (a != b)
      return Text(
          "parameter server ", job_.rank, " has ", a, ", ", job_.Name(peer.rank), " has ", b);
  }
  return "";
}

// Maps the memory of a rank on this host. For a rank on another host, creates a mirror of it.
void ParameterServer::AdoptMemory(Connection& peer) {
  ops::FileDescriptor file = peer.stream.TakeFile();
  if (!peer.local) {
    peer.memory = ops::Segment::Create(layout_.block_bytes());
    return;
  }
  struct stat status = {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < layout_.block_bytes())
    throw Error(ErrorCode::kSystem, "found no memory, or too little");
  peer.memory = ops::Segment::Map(std::move(file), layout_.block_bytes());
}

// The first server welcomes peers only after all servers have connected, because the answer has
// the places of all servers.
void ParameterServer::Welcome() {
  if (std::any_of(
          places_.begin(), places_.end(), [](const auto& place) { return place.empty(); }) &&
      is_first())
    return;
  for (Connection& peer : peers_) {
    if (!peer.known || peer.welcomed || &peer == first_) continue;
    peer.welcomed = true;
    peer.stream.Send({.kind = MessageKind::kWelcome}, base::Join(places_, "\n"));
  }
}

// ---- Steps, values and gradients ----------------------------------------------------------------

void ParameterServer::HandOutSteps() {
  for (Connection& peer : peers_) {
    if (!peer.wants_step || peer.gone) continue;
    const std::optional<uint64_t> step = queue_.Take(peer.rank, peer.wanted_end);
    if (!step && !queue_.over(peer.wanted_end)) continue;
    peer.wants_step = peer.has_pushed = false;
    peer.has_step = step.has_value();
    peer.since = Clock::now();
    peer.stream.Send(
        {.kind = step ? MessageKind::kStep : MessageKind::kEnd, .number = step.value_or(0)});
  }
}

Pieces ParameterServer::PiecesOf(const Connection& peer, uint64_t half) const {
  Pieces pieces;
  for (size_t i = 0; i < shards_.size(); ++i)
    if (shards_[i].count > 0)
      pieces.push_back({peer.memory->data() + half + shards_[i].offset, value(i).bytes()});
  return pieces;
}

void ParameterServer::GiveValues(Connection& peer) {
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < shards_.size(); ++i)
    if (shards_[i].count > 0)
      std::memcpy(
          peer.memory->data() + layout_.half + shards_[i].offset, value(i).data, value(i).bytes());
  if (peer.stream.header().value == 1) {
    gate_.Begin(peer.rank);
    peer.computes = true;
    peer.since = begin;
  }
  peer.stream.Send(
      {.kind = MessageKind::kValues, .number = gate_.version()},
      peer.local ? Pieces{} : PiecesOf(peer, layout_.half));
  ++statistics_.pulls;
  statistics_.copy_s += SecondsSince(begin);
}

// An update may allow another gradient, so the search starts again after each update.
void ParameterServer::ApplyGradients() {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (peer->pushing && !peer->gone && gate_.MayApply(peer->rank)) {
      Apply(*peer);
      peer = peers_.begin();
    } else {
      ++peer;
    }
  }
}

void ParameterServer::Apply(Connection& peer) {
  const Clock::time_point begin = Clock::now();
  std::vector<const void*> gradients;
  for (const VariableShard& shard : shards_)
    gradients.push_back(peer.memory->data() + shard.offset);
  update_(gradients);
  peer.pushing = peer.computes = false;
  peer.has_pushed = true;
  peer.stream.Send({.kind = MessageKind::kPushed, .number = gate_.Apply(peer.rank)});
  statistics_.update_s += SecondsSince(begin);
  // Sends the answer now, so that the rank computes while the next gradient is applied.
  peer.gone = !peer.stream.Flush();
}

void ParameterServer::GiveState(Connection& peer) {
  peer.stream.Send({.kind = MessageKind::kState}, EncodeTensors(state_));
}

void ParameterServer::GiveProgress(Connection& peer) {
  const ServerProgress progress = {
      .steps_done = queue_.done(),
      .steps = plan_.steps,
      .workers = static_cast<uint64_t>(Count(PeerRole::kWorker)),
      .finished = finishing_ ? 1u : 0u};
  peer.stream.Send(
      {.kind = MessageKind::kProgressIs},
      std::string(reinterpret_cast<const char*>(&progress), sizeof progress));
}

// ---- Lost peers and the end ---------------------------------------------------------------------

int ParameterServer::Count(PeerRole role) const {
  return static_cast<int>(std::count_if(peers_.begin(), peers_.end(), [&](const Connection& peer) {
    return peer.known && !peer.gone && peer.role == role && &peer != first_;
  }));
}

// Drops workers that do not complete their step in time, and peers that send no proof in time.
void ParameterServer::DropTheSilent() {
  for (Connection& peer : peers_) {
    const auto silent = Clock::now() - peer.since;
    if (!peer.proven && silent > kProofTime) peer.gone = true;
    if (!(peer.has_step || peer.computes) || silent <= job_.timeout) continue;
    job_.log(
        base::LogLevel::kWarning,
        Text(job_.Name(peer.rank), " has not done its step in ", job_.timeout.count(), " s"));
    peer.gone = true;
  }
}

void ParameterServer::Leave(Connection& peer) {
  if (!peer.known) return;
  if (peer.role == PeerRole::kServer && (is_first() || !finishing_))
    ThrowServerLost(job_, peer.rank);
  if (&peer == first_) first_ = nullptr;
  if (peer.role == PeerRole::kWorker) LoseWorker(peer);
}

// A worker that leaves in good order has done its step. With a known number of steps, it stays
// until all steps are done.
void ParameterServer::LoseWorker(Connection& peer) {
  gate_.Forget(peer.rank);
  if (!is_first()) return;
  if (peer.said_bye && peer.has_pushed) queue_.Done(peer.rank);
  const std::optional<uint64_t> step = queue_.Lose(peer.rank);
  const bool open = plan_.steps == TrainingPlan::kOpen;
  const bool in_order = peer.said_bye && (open ? !step.has_value() : queue_.over());
  const int left = Count(PeerRole::kWorker);
  if (in_order) {
    left_in_order_ = true;
  } else {
    ++statistics_.lost_workers;
    job_.log(
        base::LogLevel::kWarning,
        Text(
            job_.Name(peer.rank), peer.said_bye ? ", a worker, has left" : ", a worker, is lost",
            step ? Text("; its step ", *step, " is handed out again") : "", "; ", left,
            left == 1 ? " worker is left" : " workers are left"));
  }
  const bool all_came = static_cast<int>(workers_seen_.size()) >= plan_.workers;
  if (left == 0 && all_came && !is_complete())
    ThrowPeerLost(Text(
        "no worker is left after ", queue_.done(), open ? "" : Text(" of ", plan_.steps),
        " steps"));
}

// True if no step has to be done, as far as the workers that have left know.
bool ParameterServer::is_complete() const {
  const bool open = plan_.steps == TrainingPlan::kOpen;
  return queue_.over() || (open && left_in_order_ && queue_.idle());
}

// Without a number of steps, the training ends with the last worker.
void ParameterServer::CloseIfAllHaveLeft() {
  if (is_first() && is_complete() && Count(PeerRole::kWorker) == 0 && AllHaveCome()) queue_.Close();
}

// True if all expected ranks have connected. A rank that has ended counts, too.
bool ParameterServer::AllHaveCome() const {
  int come = 0;
  for (int rank = job_.servers; rank < job_.size; ++rank)
    if (workers_seen_.count(rank) + readers_seen_.count(rank) > 0 || job_.has_ended(rank)) ++come;
  return come >= std::min(plan_.workers + plan_.readers, job_.size - job_.servers);
}

// A server stays until all workers and readers have left. The first server also waits a limited
// time for ranks that have not connected yet: without servers, they would wait in vain. At its end,
// the first server tells the other servers to finish.
void ParameterServer::EndIfFinished() {
  if (!finishing_ || Count(PeerRole::kWorker) + Count(PeerRole::kReader) > 0) return;
  if (is_first() && !AllHaveCome() && Clock::now() - finishing_since_ < kLateComers) return;
  for (Connection& peer : peers_) {
    if (peer.known && peer.role == PeerRole::kServer && &peer != first_)
      peer.stream.Send({.kind = MessageKind::kEnd});
    peer.stream.Flush();
  }
  ended_ = true;
}

}  // namespace dtrun::runtime

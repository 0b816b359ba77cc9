// The tag of UCX is the rank of the source and the tag of the message. So a receive from one rank
// ignores the messages of other ranks, and a receive from any rank ignores the source.
//
// UCX calls back when a message has ended, inside ucp_worker_progress. The listeners are told
// afterwards, because they may start other messages.
//
// An endpoint that has failed is closed by force, and its open receives are cancelled: a receive
// belongs to the worker, so UCX would keep it open for ever.

#include <ucp/api/ucp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/engine/progress_engine.h"
#include "ops/ucx/ucx_module.h"
#include "ops/wire/wire.h"

namespace dtrun::ops {
namespace {

// The wire over OpenUCX: one worker, with an endpoint for each rank to which this rank has sent.
// An error of an endpoint makes its rank lost. All other ranks stay reachable.
class UcxWire : public wire::Wire {
 public:
  // Collective over `bootstrap`, the ranks of the job. Throws Error kUnavailable if UCX refuses
  // the settings.
  UcxWire(Bootstrap& bootstrap, Engine& engine, const wire::Settings& settings);
  ~UcxWire() override;
  UcxWire(const UcxWire&) = delete;
  UcxWire& operator=(const UcxWire&) = delete;

  void Send(
      int rank, int tag, const void* data, uint64_t bytes, Mode mode,
      std::shared_ptr<wire::Listener> listener, uint64_t key) override;
  void Receive(
      int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<wire::Listener> listener,
      uint64_t key) override;
  void Poll(uint64_t& seen) override;
  bool needs_polling() const override { return false; }
  bool Arm() override;
  uint64_t events() const override { return events_; }
  const std::vector<wire::LostPeer>& lost() const override { return lost_; }
  void LosePeers() override { peers_are_lost_ = true; }
  void Close(const wire::Listener& listener) override;
  bool usable() const override { return !closed_; }
  int largest_tag() const override { return INT32_MAX; }
  uint64_t message_bytes() const override { return 60 << 10; }

 private:
  struct Peer {
    UcxWire* wire = nullptr;
    int rank = 0;
    std::string address = {};
    ucp_ep_h endpoint = nullptr;
    ucs_status_t error = UCS_OK;
    base::TimePoint failed = {};
    bool lost = false;  // in lost_
  };
  struct Message {
    UcxWire* wire;
    std::shared_ptr<wire::Listener> listener;
    uint64_t key;
    int peer;  // or kAnySource
    bool receives, buffered;
    void* request = nullptr;
    size_t place = 0;  // in open_
  };

  static void OnSent(void* request, ucs_status_t status, void* message);
  static void OnReceived(
      void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* message);
  static void OnError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  ucp_ep_h EndpointOf(Peer& peer);
  void Begin(std::unique_ptr<Message> message, ucs_status_ptr_t result);
  void End(Message* message, ucs_status_t status);
  void Fail(Peer& peer, ucs_status_t error);
  void Progress();
  void LookForLost();
  void CancelReceives(const std::function<bool(const Message&)>& wanted);
  void Lose(Peer& peer);
  void CloseEndpoints();

  int rank_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<Peer> peers_;  // by rank; never resized, because UCX has pointers to them
  std::vector<std::unique_ptr<Message>> open_, ended_;
  std::vector<wire::LostPeer> lost_;
  int failed_ = 0;  // peers that have failed and are not in lost_ yet
  uint64_t polls_ = 0, events_ = 0;
  int vain_wakes_ = 0;  // since the worker last progressed
  bool closed_ = false, closing_ = false, peers_are_lost_ = false;
  std::unique_ptr<wire::Waker> waker_;
};

using base::Text;

// A process that ends loses its connections first. So this rank waits before it acts on the loss:
// meanwhile, the launcher sees the end of the process that is to blame.
constexpr std::chrono::milliseconds kCulpritFirst{300};
// How long the last messages may take to leave at the end of the job.
constexpr std::chrono::seconds kFarewell{5};
constexpr int kTagBits = 32;
constexpr ucp_tag_t kTagMask = (ucp_tag_t{1} << kTagBits) - 1;

void Check(ucs_status_t status, const char* call) {
  if (status == UCS_OK) return;
  throw Error(ErrorCode::kUnavailable, Text(call, " failed: ", ucs_status_string(status)));
}

// UCX leaves its descriptor ready while a connection waits for its peer. Without a pause, the rank
// and its waker would wake each other up for as long, and keep the peer itself from its CPU: Linux
// 6.18 runs nothing else beside two such pairs on two CPUs.
std::chrono::microseconds PauseOf(int vain_wakes) {
  constexpr int kAtOnce = 8, kMostDoublings = 6;
  if (vain_wakes < kAtOnce) return std::chrono::microseconds(0);
  return std::chrono::microseconds(16 << std::min(vain_wakes - kAtOnce, kMostDoublings));
}

// UCX reads its settings from the environment. A value that the user has set stays.
void Prefer(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 0); }

ucp_context_h MakeContext(const wire::Settings& settings, int ranks) {
  const auto part_of = [&](int parts) {
    return Text(std::max<int64_t>(1, settings.lost_after.count() / parts), "s");
  };
  Prefer("UCX_TLS", "tcp,ib");
  if (!settings.interface.empty()) Prefer("UCX_NET_DEVICES", settings.interface);
  // A message of a transfer goes at once. Its receive has been started by then.
  Prefer("UCX_RNDV_THRESH", "1m");
  Prefer("UCX_KEEPALIVE_INTERVAL", part_of(3));
  Prefer("UCX_TCP_KEEPIDLE", part_of(3));
  Prefer("UCX_TCP_KEEPINTVL", part_of(6));
  ucp_config_t* config = nullptr;
  Check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> owner(
      config, &ucp_config_release);
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(ranks);
  ucp_context_h context = nullptr;
  Check(ucp_init(&params, config, &context), "ucp_init");
  return context;
}

UcxWire::UcxWire(Bootstrap& bootstrap, Engine& engine, const wire::Settings& settings)
    : rank_(bootstrap.rank()), context_(MakeContext(settings, bootstrap.size())) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  Check(ucp_worker_create(context_, &params, &worker_), "ucp_worker_create");
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  Check(ucp_worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
  const std::string mine(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  const std::vector<std::string> all = bootstrap.AllGather(mine);
  peers_.resize(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    peers_[rank].wire = this;
    peers_[rank].rank = static_cast<int>(rank);
    peers_[rank].address = all[rank];
  }
  int file = -1;
  Check(ucp_worker_get_efd(worker_, &file), "ucp_worker_get_efd");
  waker_ = std::make_unique<wire::Waker>(file, engine.doorbell_segment());
}

UcxWire::~UcxWire() {
  waker_.reset();
  closing_ = true;
  CloseEndpoints();
  CancelReceives([](const Message&) { return true; });
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  while (!open_.empty() && std::chrono::steady_clock::now() < deadline)
    ucp_worker_progress(worker_);
  // UCX may still write into the memory of open messages, so that memory is never freed.
  if (!open_.empty()) {
    new std::vector<std::unique_ptr<Message>>(std::move(open_));
    return;
  }
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

// Closes all endpoints after their last messages have left, unless nobody waits for these. UCX
// would wait long for a peer that does not answer and has not failed yet.
void UcxWire::CloseEndpoints() {
  std::vector<void*> closing;
  for (Peer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    ucp_request_param_t params = {};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    const bool waits = peer.error == UCS_OK && !peers_are_lost_;
    params.flags = waits ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
    void* request = ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &params);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  for (void* request : closing) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS &&
           std::chrono::steady_clock::now() < deadline)
      ucp_worker_progress(worker_);
    ucp_request_free(request);
  }
}

ucp_ep_h UcxWire::EndpointOf(Peer& peer) {
  if (peer.endpoint != nullptr) return peer.endpoint;
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxWire::OnError, &peer};
  const ucs_status_t status = ucp_ep_create(worker_, &params, &peer.endpoint);
  if (status != UCS_OK) Fail(peer, status);
  return peer.endpoint;
}

void UcxWire::Send(
    int rank, int tag, const void* data, uint64_t bytes, Mode mode,
    std::shared_ptr<wire::Listener> listener, uint64_t key) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  auto message = std::make_unique<Message>(Message{
      .wire = this,
      .listener = std::move(listener),
      .key = key,
      .peer = rank,
      .receives = false,
      .buffered = mode == Mode::kBuffered});
  ucp_ep_h endpoint = peer.error == UCS_OK ? EndpointOf(peer) : nullptr;
  if (endpoint == nullptr) {
    Begin(std::move(message), UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET));
    return;
  }
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &UcxWire::OnSent;
  params.user_data = message.get();
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucp_tag_t full = static_cast<ucp_tag_t>(rank_) << kTagBits |
                         static_cast<ucp_tag_t>(static_cast<uint32_t>(tag));
  const auto send = mode == Mode::kSynchronous ? ucp_tag_send_sync_nbx : ucp_tag_send_nbx;
  const ucs_status_ptr_t result = send(endpoint, data, bytes, full, &params);
  Begin(std::move(message), result);
}

void UcxWire::Receive(
    int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<wire::Listener> listener,
    uint64_t key) {
  auto message = std::make_unique<Message>(Message{
      .wire = this,
      .listener = std::move(listener),
      .key = key,
      .peer = rank,
      .receives = true,
      .buffered = false});
  if (rank != kAnySource && peers_[static_cast<size_t>(rank)].error != UCS_OK) return;
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.recv = &UcxWire::OnReceived;
  params.user_data = message.get();
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const auto source = static_cast<ucp_tag_t>(rank == kAnySource ? 0 : rank);
  const ucs_status_ptr_t result = ucp_tag_recv_nbx(
      worker_, data, bytes, source << kTagBits | static_cast<uint32_t>(tag),
      rank == kAnySource ? kTagMask : ~ucp_tag_t{0}, &params);
  Begin(std::move(message), result);
}

// A message that ends at once has no callback.
void UcxWire::Begin(std::unique_ptr<Message> message, ucs_status_ptr_t result) {
  message->place = open_.size();
  open_.push_back(std::move(message));
  if (UCS_PTR_IS_PTR(result)) {
    open_.back()->request = result;
  } else {
    End(open_.back().get(), UCS_PTR_STATUS(result));
  }
}

void UcxWire::OnSent(void* request, ucs_status_t status, void* message) {
  static_cast<Message*>(message)->wire->End(static_cast<Message*>(message), status);
  ucp_request_free(request);
}

void UcxWire::OnReceived(
    void* request, ucs_status_t status, const ucp_tag_recv_info_t*, void* message) {
  static_cast<Message*>(message)->wire->End(static_cast<Message*>(message), status);
  ucp_request_free(request);
}

// Takes the message from the open ones. A message that has failed does not end for its listener,
// unless it was buffered.
void UcxWire::End(Message* message, ucs_status_t status) {
  std::unique_ptr<Message>& place = open_[message->place];
  std::unique_ptr<Message> ended = std::move(place);
  if (message->place + 1 != open_.size()) {
    place = std::move(open_.back());
    place->place = message->place;
  }
  open_.pop_back();
  ++events_;
  if (status != UCS_OK && status != UCS_ERR_CANCELED && ended->peer != kAnySource)
    Fail(peers_[static_cast<size_t>(ended->peer)], status);
  if (status == UCS_OK || ended->buffered) ended_.push_back(std::move(ended));
}

void UcxWire::OnError(void* peer, ucp_ep_h, ucs_status_t status) {
  Peer& failed = *static_cast<Peer*>(peer);
  failed.wire->Fail(failed, status);
}

void UcxWire::Fail(Peer& peer, ucs_status_t error) {
  if (peer.error != UCS_OK || closing_) return;
  peer.error = error;
  peer.failed = std::chrono::steady_clock::now();
  ++failed_;
  ++events_;
}

void UcxWire::Poll(uint64_t& seen) {
  if (seen != polls_) {
    seen = polls_;
    return;
  }
  seen = ++polls_;
  if (closed_) return;
  Progress();
  while (!ended_.empty()) {
    std::vector<std::unique_ptr<Message>> ended;
    ended.swap(ended_);
    for (const auto& message : ended) message->listener->Ended(message->key);
    Progress();
  }
  if (failed_ > 0) LookForLost();
}

void UcxWire::Progress() {
  while (ucp_worker_progress(worker_) != 0) vain_wakes_ = 0;
}

bool UcxWire::Arm() {
  if (closed_) return true;
  const ucs_status_t status = ucp_worker_arm(worker_);
  if (status == UCS_ERR_BUSY) return false;
  waker_->Arm(PauseOf(vain_wakes_++));
  return true;
}

void UcxWire::LookForLost() {
  const base::TimePoint now = std::chrono::steady_clock::now();
  for (Peer& peer : peers_) {
    if (peer.error != UCS_OK && !peer.lost && now - peer.failed >= kCulpritFirst) Lose(peer);
  }
}

// A cancelled receive may end at once, and leaves the list of open messages then.
void UcxWire::CancelReceives(const std::function<bool(const Message&)>& wanted) {
  std::vector<void*> requests;
  for (const auto& message : open_) {
    if (message->receives && message->request != nullptr && wanted(*message))
      requests.push_back(message->request);
  }
  for (void* request : requests) ucp_request_cancel(worker_, request);
}

void UcxWire::Lose(Peer& peer) {
  peer.lost = true;
  --failed_;
  ++events_;
  // UCX reports the end of a process as a timeout of its endpoint.
  lost_.push_back({peer.rank, "its process or its host does not answer"});
  CancelReceives([&](const Message& message) { return message.peer == peer.rank; });
}

void UcxWire::Close(const wire::Listener& listener) {
  closed_ = true;
  CancelReceives([&](const Message& message) { return message.listener.get() == &listener; });
  for (int i = 0; i < 1000 && ucp_worker_progress(worker_) != 0; ++i) {
  }
}

std::unique_ptr<Communicator> Create(
    Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings) {
  return wire::CreateWireWorld(
      "ucx", std::make_unique<UcxWire>(bootstrap, engine, settings), bootstrap, engine,
      std::move(members), settings.relays_from);
}

const UcxModule kModule = {.version = base::kVersion, .create = &Create};

}  // namespace
}  // namespace dtrun::ops

extern "C" __attribute__((visibility("default"))) const dtrun::ops::UcxModule* dtrun_ucx_module() {
  return &dtrun::ops::kModule;
}

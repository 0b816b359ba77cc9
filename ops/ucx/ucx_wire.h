#ifndef DTRUN_OPS_UCX_UCX_WIRE_H_
#define DTRUN_OPS_UCX_UCX_WIRE_H_

#include <ucp/api/ucp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/engine/progress_engine.h"
#include "ops/wire/waker.h"
#include "ops/wire/wire.h"

namespace dtrun::ops::ucx {

/// The wire over OpenUCX: one worker, with an endpoint for each rank to which this rank has sent.
/// An error of an endpoint makes its rank lost. All other ranks stay reachable.
class UcxWire : public wire::Wire {
 public:
  /// Collective over `bootstrap`, the ranks of the job. Throws Error kUnavailable if UCX refuses
  /// the settings.
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
  bool closed_ = false, closing_ = false;
  std::unique_ptr<wire::Waker> waker_;
};

}  // namespace dtrun::ops::ucx

#endif  // DTRUN_OPS_UCX_UCX_WIRE_H_

#include "launcher/rank_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>

#include "launcher/agent_address.h"
#include "launcher/frame.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

using nlohmann::json;

constexpr int kPatienceMs = 30'000;

void Send(int connection, const Frame& frame) {
  const std::string bytes = Encode(frame);
  [[maybe_unused]] const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// The one frame that an agent says.
std::string Welcome(int connection) {
  FrameReader reader;
  for (;;) {
    pollfd ready = {connection, POLLIN, 0};
    char bytes[4096];
    const ssize_t got =
        poll(&ready, 1, kPatienceMs) > 0 ? read(connection, bytes, sizeof bytes) : 0;
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw LaunchError(ExitCode::kInternal, "the agent of this host does not take this rank");
    reader.Feed(bytes, static_cast<size_t>(got));
    if (const std::optional<Frame> frame = reader.Next())
      return json::parse(frame->body).at("folder");
  }
}

}  // namespace

RankLink::RankLink(const std::string& job, int host, int rank, int out, int err)
    : connection_(ConnectToAgent(job, host)), rank_(rank) {
  SendWithFiles(connection_, Encode({FrameType::kHello, rank}), {out, err});
  folder_ = Welcome(connection_);
}

RankLink::~RankLink() { close(connection_); }

void RankLink::SayStarted(pid_t program) {
  Send(connection_, {FrameType::kProgram, rank_, json{{"pid", program}}.dump()});
}

void RankLink::SayEnded(RankEnd end, int value, int64_t address_limit) {
  const json body = {
      {"end", static_cast<int>(end)}, {"value", value}, {"address_limit", address_limit}};
  Send(connection_, {FrameType::kExit, rank_, body.dump()});
}

}  // namespace dtrun::launcher

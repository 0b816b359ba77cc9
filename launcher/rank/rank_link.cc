#include "launcher/rank/rank_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "launcher/engines/mpirun.h"
#include "launcher/protocol/frame.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using nlohmann::json;

constexpr int kPatienceMs = 30'000;

void Send(int connection, const Frame& frame) {
  const std::string bytes = Encode(frame);
  [[maybe_unused]] const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

}  // namespace

RankLink::RankLink(const std::string& job, int host, int rank, int out, int err)
    : connection_(ConnectToAgent(job, host)), rank_(rank) {
  SendWithFiles(connection_, Encode({FrameType::kHello, rank, OwnSessionFolder()}), {out, err});
  folder_ = json::parse(Welcome().body).at("folder");
}

RankLink::~RankLink() {
  CloseInput();
  close(connection_);
}

// The agent's first frame. The descriptor of the program's stdin may come with it.
Frame RankLink::Welcome() {
  std::vector<int> files;
  for (;;) {
    pollfd ready = {connection_, POLLIN, 0};
    char bytes[4096];
    const ssize_t got = poll(&ready, 1, kPatienceMs) > 0
                            ? ReceiveWithFiles(connection_, bytes, sizeof bytes, files)
                            : 0;
    if (got < 0) continue;
    if (got == 0)
      throw LaunchError(ExitCode::kInternal, "the agent of this host did not answer this rank");
    if (!files.empty()) input_ = files.back();
    reader_.Feed(bytes, static_cast<size_t>(got));
    if (const std::optional<Frame> frame = reader_.Next()) return *frame;
  }
}

void RankLink::CloseInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

std::optional<std::vector<Frame>> RankLink::Hear() {
  char bytes[4096];
  const ssize_t got = recv(connection_, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return std::nullopt;
  if (got > 0) reader_.Feed(bytes, static_cast<size_t>(got));
  std::vector<Frame> frames;
  while (const std::optional<Frame> frame = reader_.Next()) frames.push_back(*frame);
  return frames;
}

void RankLink::SayStarted(pid_t program) {
  Send(connection_, {FrameType::kProgram, rank_, json{{"pid", program}}.dump()});
}

void RankLink::SayEnded(RankEnd end, int value, int64_t at_ns, int64_t address_limit, bool alone) {
  const json body = {
      {"end", static_cast<int>(end)},
      {"value", value},
      {"at_ns", at_ns},
      {"address_limit", address_limit},
      {"alone", alone}};
  Send(connection_, {FrameType::kExit, rank_, body.dump()});
}

void RankLink::SayTakes(bool takes) {
  Send(connection_, {FrameType::kTakes, rank_, json{{"takes", takes}}.dump()});
}

}  // namespace dtrun::launcher

// Each call sends its request to all servers first, and then waits for each answer, so the servers
// work at the same time. A request to a server on another host may be longer than the socket
// accepts at once. The rest is sent during the wait for that server. This cannot deadlock, because
// a server never stops reading.

#include "runtime/parameter_server/variable_client.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/parameter_server/message_stream.h"

namespace dtrun::runtime {

using base::Text;

ParameterClient::ParameterClient(
    const ServerJob& job, const std::vector<Tensor>& variables, const PartitionRule& rule,
    PeerRole role)
    : job_(job),
      role_(role),
      exceptions_(std::uncaught_exceptions()),
      layout_(PlanVariables(variables, job.servers, rule)) {
  for (const Tensor& variable : variables)
    shapes_.emplace_back(nullptr, variable.buffer.count, variable.buffer.dtype);
  memory_ = ops::Segment::Create(layout_.block_bytes());
  memory_->Populate(0, 1);
  Enter(0, job_.first);
  const std::vector<std::string> places = base::Split(stream(0).text(), '\n');
  for (int server = 1; server < job_.servers; ++server) {
    const auto index = static_cast<size_t>(server);
    Enter(server, ops::TcpPlace::Read(index < places.size() ? places[index] : ""));
  }
}

ParameterClient::~ParameterClient() {
  if (std::uncaught_exceptions() > exceptions_) return;
  for (const auto& stream : streams_) {
    stream->Send({.kind = MessageKind::kBye});
    try {
      stream->Flush();
    } catch (const Error&) {
      // The server still sees that this rank is gone, but not that it left in good order.
    }
  }
}

// Twice the time limit: an answer may wait for the step of another worker, and the servers drop a
// worker that hangs after one time limit.
PeerDeadline ParameterClient::Deadline() const {
  return std::chrono::steady_clock::now() + 2 * job_.timeout;
}

void ParameterClient::Enter(int server, const ops::TcpPlace& place) {
  streams_.push_back(VisitServer(job_, server, place, Deadline()));
  stream(server).Send(
      {.kind = MessageKind::kHello,
       .number = static_cast<uint64_t>(job_.rank),
       .value = static_cast<uint64_t>(role_)},
      HelloText(layout_), is_remote(server) ? -1 : memory_->fd());
  Await(server, MessageKind::kWelcome);
}

Buffer ParameterClient::gradient(size_t index) const {
  Buffer buffer = shapes_[index];
  buffer.data = memory_->data() + layout_.offsets[index];
  return buffer;
}

Buffer ParameterClient::value(size_t index) const {
  Buffer buffer = shapes_[index];
  buffer.data = memory_->data() + layout_.half + layout_.offsets[index];
  return buffer;
}

// Empty for a server on this host: it maps the memory.
Pieces ParameterClient::PiecesOf(int server, uint64_t half) const {
  Pieces pieces;
  if (!is_remote(server)) return pieces;
  for (const VariableShard& shard : layout_.OfServer(server))
    if (shard.count > 0)
      pieces.push_back(
          {memory_->data() + half + shard.offset,
           shard.count * SizeOf(shapes_[shard.variable].dtype)});
  return pieces;
}

void ParameterClient::Ask(int server, MessageHeader header, const Pieces& pieces) {
  stream(server).Send(header, pieces);
  stream(server).Flush();
}

void ParameterClient::Await(int server, MessageKind kind, const MessageStream::Target& target) {
  MessageStream& from = stream(server);
  const std::string late = Text(
      "parameter server ", server, " (", job_.Name(server), ") did not answer in ",
      2 * job_.timeout.count(), " s");
  if (!AwaitMessage(from, Deadline(), late, target)) ThrowServerLost(job_, server);
  if (from.header().kind == MessageKind::kRefused) throw Error(ErrorCode::kMismatch, from.text());
  if (from.header().kind != kind &&
      !(kind == MessageKind::kStep && from.header().kind == MessageKind::kEnd))
    throw Error(
        ErrorCode::kSystem, Text("parameter server ", server, " sent an answer without a request"));
}

std::optional<uint64_t> ParameterClient::NextStep(uint64_t first, uint64_t end) {
  Ask(0, {.kind = MessageKind::kNext, .number = first, .value = end});
  Await(0, MessageKind::kStep);
  const MessageHeader& answer = stream(0).header();
  has_step_ = answer.kind == MessageKind::kStep;
  return has_step_ ? std::optional(answer.number) : std::nullopt;
}

uint64_t ParameterClient::Pull() {
  const uint64_t computes = has_step_ ? 1 : 0;
  for (int server = 0; server < job_.servers; ++server)
    Ask(server, {.kind = MessageKind::kPull, .value = computes});
  for (int server = 0; server < job_.servers; ++server)
    Await(server, MessageKind::kValues, [&](const MessageHeader& header) {
      return header.kind == MessageKind::kValues ? PiecesOf(server, layout_.half) : Pieces{};
    });
  return stream(0).header().number;
}

uint64_t ParameterClient::Push() {
  for (int server = 0; server < job_.servers; ++server)
    Ask(server, {.kind = MessageKind::kPush}, PiecesOf(server, 0));
  for (int server = 0; server < job_.servers; ++server) Await(server, MessageKind::kPushed);
  has_step_ = false;
  return stream(0).header().number;
}

TensorFile ParameterClient::ReadState() {
  for (int server = 0; server < job_.servers; ++server)
    Ask(server, {.kind = MessageKind::kReadState});
  TensorFile state;
  for (int server = 0; server < job_.servers; ++server) {
    Await(server, MessageKind::kState);
    DecodeTensors(stream(server).text(), state);
  }
  return state;
}

ServerProgress ParameterClient::Progress() {
  Ask(0, {.kind = MessageKind::kProgress});
  Await(0, MessageKind::kProgressIs);
  ServerProgress progress;
  if (stream(0).text().size() != sizeof progress)
    throw Error(ErrorCode::kSystem, "parameter server 0 sent an invalid progress report");
  std::memcpy(&progress, stream(0).text().data(), sizeof progress);
  return progress;
}

}  // namespace dtrun::runtime

#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_VISIT_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_VISIT_H_

#include <chrono>
#include <functional>
#include <memory>

#include "runtime/parameter_server/message_stream.h"
#include "runtime/parameter_server/server_settings.h"
#include "runtime/parameter_server/variable_layout.h"

namespace dtrun::runtime {

using PeerDeadline = std::chrono::steady_clock::time_point;

/// Connects to a server, as soon as it is there, and proves what a peer of another host has to
/// prove; `place` is where it listens for those. Null when `give_up` (asked now and then) says so.
/// Throws Error kTimeout, which names the server; kSystem.
std::unique_ptr<MessageStream> VisitServer(
    const ServerJob& job, int server, const TcpPlace& place, PeerDeadline deadline,
    const std::function<bool()>& give_up = nullptr);

/// Waits until a message is there as a whole, and sends meanwhile what is to be sent. False when
/// the other end is gone. Throws Error kTimeout with `late`; kSystem.
bool AwaitMessage(
    MessageStream& stream, PeerDeadline deadline, const std::string& late,
    const MessageStream::Target& target = nullptr);

/// What kHello carries: everything that has to be the same in all processes.
std::string HelloText(const VariableLayout& layout);

}  // namespace dtrun::runtime

#endif

// Operations that only move data from one rank to another: all_gather, all_to_all, gather, scatter,
// small broadcasts, and messages between two ranks. Every byte goes once, straight from its source
// to its destination. Data in a header is copied from the header. Other data is a stream for each
// peer and direction. A stream consists of messages, and a window of them is under way.

#include <algorithm>
#include <cstring>
#include <set>

#include "ops/wire/wire_transfer.h"

namespace dtrun::ops::wire {
namespace {

struct Stream {
  bool sends;
  int peer;
  char* data;
  uint64_t bytes;
  uint64_t started = 0;  // bytes
  int open = 0;          // messages
};

class MoveTransfer : public Transfer {
 public:
  MoveTransfer(Agreed agreed_in, std::vector<Stream> streams)
      : Transfer(std::move(agreed_in)), streams_(std::move(streams)), left_(streams_.size()) {}

  void Start() override {
    for (size_t i = 0; i < streams_.size(); ++i) Fill(i);
  }
  bool Done() const override { return left_ == 0; }
  std::vector<int> Awaited() const override {
    std::set<int> peers;
    for (const Stream& stream : streams_) {
      if (stream.open > 0) peers.insert(stream.peer);
    }
    return {peers.begin(), peers.end()};
  }

 private:
  void Handle(uint64_t key) override {
    Stream& stream = streams_[key];
    --stream.open;
    Fill(key);
    if (stream.open == 0) --left_;
  }

  void Fill(size_t index) {
    Stream& stream = streams_[index];
    const uint64_t most = agreed().message_bytes();
    const int window = static_cast<int>(kWindowBytes / most);  // messages
    for (; stream.open < window && stream.started < stream.bytes; ++stream.open) {
      char* data = stream.data + stream.started;
      const uint64_t bytes = std::min(most, stream.bytes - stream.started);
      if (stream.sends) {
        Send(stream.peer, 0, data, bytes, index);
      } else {
        Receive(stream.peer, 0, data, bytes, index);
      }
      stream.started += bytes;
    }
  }

  std::vector<Stream> streams_;
  size_t left_;  // streams that have not ended
};

char* At(const Buffer& buffer, Range range, const Agreed& agreed) {
  return static_cast<char*>(buffer.data) + range.begin * agreed.element();
}

void CopyOwn(const Agreed& agreed) {
  const Collective& collective = agreed.collective;
  const int rank = agreed.rank();
  if (collective.kind == CollectiveKind::kBroadcast) return;
  const Range from = agreed.calls().InInput(rank, rank);
  if (from.count == 0) return;
  const char* input = At(collective.input, from, agreed);
  char* output = At(collective.output, agreed.calls().InOutput(rank, rank), agreed);
  if (input != output) std::memcpy(output, input, from.count * agreed.element());
}

// Copies the data in the headers. Returns a stream for each source of other data.
std::vector<Stream> Incoming(const Agreed& agreed) {
  std::vector<Stream> streams;
  for (int i = 1; i < agreed.size(); ++i) {
    const int source = (agreed.rank() + agreed.size() - i) % agreed.size();
    const Range range = agreed.calls().InOutput(source, agreed.rank());
    if (range.count == 0) continue;
    const uint64_t bytes = range.count * agreed.element();
    char* data = At(agreed.collective.output, range, agreed);
    if (const char* brought = agreed.DataFrom(source)) {
      std::memcpy(data, brought, bytes);
    } else {
      streams.push_back({.sends = false, .peer = source, .data = data, .bytes = bytes});
    }
  }
  return streams;
}

// Adds the stream to the next rank first, so that the ranks do not all send to the same rank at
// once.
void AddOutgoing(const Agreed& agreed, std::vector<Stream>& streams) {
  for (int i = 1; i < agreed.size(); ++i) {
    const int destination = (agreed.rank() + i) % agreed.size();
    const Range range = agreed.calls().InInput(agreed.rank(), destination);
    const uint64_t bytes = range.count * agreed.element();
    if (agreed.InHeader(bytes)) continue;
    char* data = At(agreed.collective.input, range, agreed);
    streams.push_back({.sends = true, .peer = destination, .data = data, .bytes = bytes});
  }
}

}  // namespace

std::shared_ptr<Transfer> Move(Agreed agreed) {
  CopyOwn(agreed);
  std::vector<Stream> streams = Incoming(agreed);
  AddOutgoing(agreed, streams);
  if (streams.empty()) return nullptr;
  return std::make_shared<MoveTransfer>(std::move(agreed), std::move(streams));
}

std::shared_ptr<Transfer> MoveMessage(Agreed agreed) {
  const Collective& collective = agreed.collective;
  const bool sends = collective.kind == CollectiveKind::kSend;
  const Buffer& buffer = sends ? collective.input : collective.output;
  if (agreed.InHeader(buffer.bytes())) {
    if (!sends && buffer.count > 0) {
      std::memcpy(buffer.data, agreed.DataFrom(collective.root), buffer.bytes());
    }
    return nullptr;
  }
  std::vector<Stream> streams = {
      {.sends = sends,
       .peer = collective.root,
       .data = static_cast<char*>(buffer.data),
       .bytes = buffer.bytes()}};
  return std::make_shared<MoveTransfer>(std::move(agreed), std::move(streams));
}

}  // namespace dtrun::ops::wire

#include "ops/communicator.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

using base::Text;

void CheckBuffer(CollectiveKind kind, const char* which, const Buffer& buffer) {
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    throw Error(code, Text(NameOf(kind), ": ", which, what));
  };
  if (SizeOf(buffer.dtype) == 0) {
    refuse(
        ErrorCode::kInvalidArgument,
        Text(" has dtype ", static_cast<int>(buffer.dtype), ", which does not exist"));
  }
  if (buffer.data == nullptr && buffer.count > 0) {
    refuse(ErrorCode::kInvalidArgument, Text(" is null but has ", buffer.count, " elements"));
  }
  if (buffer.count > UINT64_MAX / 2 / SizeOf(buffer.dtype)) {
    refuse(
        ErrorCode::kInvalidArgument,
        Text(" has ", buffer.count, " elements: more than memory can hold"));
  }
  if (buffer.device >= 0) {
    refuse(
        ErrorCode::kUnavailable,
        Text(" lies on GPU ", buffer.device, "; no backend here reduces GPU memory"));
  }
}

}  // namespace

const char* NameOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "all_reduce";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kBarrier: return "barrier";
  }
  return "unknown collective";
}

std::string Describe(const Collective& collective) {
  std::string text = NameOf(collective.kind);
  if (collective.kind == CollectiveKind::kBarrier) return text;
  text += Text(" (", NameOf(collective.input.dtype), ", ", collective.input.count, " elements");
  if (collective.kind == CollectiveKind::kAllReduce) text += Text(", ", NameOf(collective.op));
  if (collective.kind == CollectiveKind::kBroadcast) text += Text(", root ", collective.root);
  return text + ")";
}

Work Communicator::StartAllReduce(Buffer buffer, ReduceOp op) {
  CheckBuffer(CollectiveKind::kAllReduce, "the buffer", buffer);
  if (op < ReduceOp::kSum || op > ReduceOp::kProduct) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("all_reduce: reduce op ", static_cast<int>(op), " does not exist"));
  }
  return Start({.kind = CollectiveKind::kAllReduce, .input = buffer, .output = {}, .op = op});
}

Work Communicator::StartBroadcast(Buffer buffer, int root) {
  CheckBuffer(CollectiveKind::kBroadcast, "the buffer", buffer);
  if (root < 0 || root >= size()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("broadcast: root is ", root, "; expected a rank from 0 to ", size() - 1));
  }
  return Start({.kind = CollectiveKind::kBroadcast, .input = buffer, .output = {}, .root = root});
}

Work Communicator::StartAllGather(Buffer input, Buffer output) {
  CheckBuffer(CollectiveKind::kAllGather, "the input", input);
  CheckBuffer(CollectiveKind::kAllGather, "the output", output);
  const uint64_t expected = input.count * static_cast<uint64_t>(size());
  if (output.count != expected || output.dtype != input.dtype) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "all_gather: the output has ", output.count, " elements of ", NameOf(output.dtype),
            "; expected ", expected, " of ", NameOf(input.dtype), " (", size(), " ranks of ",
            input.count, ")"));
  }
  return Start({.kind = CollectiveKind::kAllGather, .input = input, .output = output});
}

Work Communicator::StartBarrier() {
  return Start({.kind = CollectiveKind::kBarrier, .input = {}, .output = {}});
}

namespace {

class PrivateMemory : public Memory {
 public:
  using Memory::Memory;
  ~PrivateMemory() override { ::munmap(data(), std::max<uint64_t>(bytes(), 1)); }
};

}  // namespace

std::unique_ptr<Memory> AllocatePrivate(uint64_t bytes) {
  void* data = ::mmap(
      nullptr, std::max<uint64_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
      -1, 0);
  if (data == MAP_FAILED) ThrowErrno(Text("mmap of ", bytes, " bytes"));
  return std::make_unique<PrivateMemory>(data, bytes);
}

}  // namespace dtrun::ops

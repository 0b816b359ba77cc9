#include "ops/communicator/communicator_base.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/local_socket.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {

using base::Text;

Work Communicator::Start(Collective collective) {
  if (UpdatesShares(collective.kind)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(NameOf(collective.kind), " cannot be started as an operation"));
  }
  const int own = rank();
  DropIgnoredCounts(collective, own);
  CheckArguments(collective, own, size());
  const int device = DeviceOf(collective, own);
  if (device < 0) return StartChecked(std::move(collective));
  if (make_device_group_ == nullptr) {
    throw Error(
        ErrorCode::kUnavailable, Text(
                                     NameOf(collective.kind), ": the data lies on GPU ", device,
                                     "; no backend here reaches GPU memory"));
  }
  device_group(device).Enqueue(collective);
  return Work();
}

Work Communicator::StartAllReduce(Buffer input, Buffer output, ReduceOp op, Scale scale) {
  return Start({
      .kind = CollectiveKind::kAllReduce,
      .input = input,
      .output = output,
      .op = op,
      .scale = scale,
  });
}

Work Communicator::StartReduceScatter(
    Buffer input, Buffer output, ReduceOp op, Scale scale, Counts shares) {
  return Start({
      .kind = CollectiveKind::kReduceScatter,
      .input = input,
      .output = output,
      .op = op,
      .scale = scale,
      .send_counts = std::move(shares),
  });
}

Work Communicator::StartReduce(Buffer input, Buffer output, int root, ReduceOp op, Scale scale) {
  return Start({
      .kind = CollectiveKind::kReduce,
      .input = input,
      .output = output,
      .op = op,
      .scale = scale,
      .root = root,
  });
}

Work Communicator::StartBroadcast(Buffer buffer, int root) {
  return Start(
      {.kind = CollectiveKind::kBroadcast, .input = buffer, .output = buffer, .root = root});
}

Work Communicator::StartAllGather(Buffer input, Buffer output, Counts receive_counts) {
  return Start({
      .kind = CollectiveKind::kAllGather,
      .input = input,
      .output = output,
      .receive_counts = std::move(receive_counts),
  });
}

Work Communicator::StartAllToAll(
    Buffer input, Buffer output, Counts send_counts, Counts receive_counts) {
  return Start({
      .kind = CollectiveKind::kAllToAll,
      .input = input,
      .output = output,
      .send_counts = std::move(send_counts),
      .receive_counts = std::move(receive_counts),
  });
}

Work Communicator::StartGather(Buffer input, Buffer output, int root, Counts receive_counts) {
  return Start({
      .kind = CollectiveKind::kGather,
      .input = input,
      .output = output,
      .root = root,
      .receive_counts = std::move(receive_counts),
  });
}

Work Communicator::StartScatter(Buffer input, Buffer output, int root, Counts send_counts) {
  return Start({
      .kind = CollectiveKind::kScatter,
      .input = input,
      .output = output,
      .root = root,
      .send_counts = std::move(send_counts),
  });
}

Work Communicator::StartBarrier() { return Start({.kind = CollectiveKind::kBarrier}); }

Work Communicator::StartSend(Buffer buffer, int peer) {
  return Start({.kind = CollectiveKind::kSend, .input = buffer, .root = peer});
}

Work Communicator::StartReceive(Buffer buffer, int peer) {
  return Start({.kind = CollectiveKind::kReceive, .output = buffer, .root = peer});
}

// --- communicators made from this one -----------------------------------------------------------

std::unique_ptr<Communicator> Communicator::CreateFor(
    const std::vector<int>& ranks, const std::string& suffix) {
  // The ranks also meet through sockets, at which a rank that the job has lost does not come.
  std::optional<AbandonScope> abandon;
  if (engine() != nullptr) abandon.emplace([this] { return engine()->WhyPeersAreLost(); });
  CommunicatorBootstrap all(*this);
  SubsetBootstrap bootstrap(all, ranks);
  std::unique_ptr<Communicator> created;
  std::exception_ptr error;
  try {
    if (!ranks.empty()) created = Create(bootstrap, ranks, members().Subset(ranks, suffix));
  } catch (...) {
    error = std::current_exception();
  }
  bootstrap.Finish();
  if (error) std::rethrow_exception(error);
  if (created != nullptr) created->UseDevices(make_device_group_);
  return created;
}

std::vector<std::string> AllGatherBytes(Communicator& communicator, const std::string& bytes) {
  const auto size = static_cast<size_t>(communicator.size());
  uint64_t length = bytes.size();
  Counts lengths(size);
  communicator.AllGather(Buffer(&length, 1), Buffer(lengths.data(), size));
  uint64_t total = 0;
  for (const uint64_t each : lengths) total += each;
  std::string mine = bytes, all(total, '\0');
  communicator
      .StartAllGather(
          Buffer(mine.data(), length, DType::kU8), Buffer(all.data(), total, DType::kU8), lengths)
      .Wait();
  std::vector<std::string> result;
  size_t begin = 0;
  for (const uint64_t each : lengths) {
    result.push_back(all.substr(begin, each));
    begin += each;
  }
  return result;
}

std::unique_ptr<Memory> BroadcastBytes(
    Communicator& communicator, const void* data, uint64_t bytes, int root) {
  uint64_t length = bytes;
  communicator.Broadcast(Buffer(&length, 1), root);
  std::unique_ptr<Memory> received = AllocatePrivate(length);
  if (communicator.rank() == root && length > 0) std::memcpy(received->data(), data, length);
  communicator.Broadcast(Buffer(received->data(), length, DType::kU8), root);
  return received;
}

std::unique_ptr<Communicator> Communicator::Reform() {
  std::unique_ptr<Communicator> left = ReformLeft();
  left->UseDevices(make_device_group_);
  return left;
}

std::unique_ptr<Communicator> Communicator::ReformLeft() {
  throw Error(
      ErrorCode::kUnavailable,
      base::Text(
          "the backend ", backend(),
          " cannot go on without a lost rank; expected a communicator over tcp or ucx"));
}

std::unique_ptr<Communicator> Communicator::Duplicate() {
  std::vector<int> everyone;
  for (int r = 0; r < size(); ++r) everyone.push_back(r);
  return CreateFor(everyone, Text("/", ++children_));
}

std::unique_ptr<Communicator> Communicator::Split(int colour, int key) {
  const auto p = static_cast<size_t>(size());
  int64_t mine[2] = {colour, key};
  std::vector<int64_t> all(2 * p);
  AllGather(Buffer(mine, 2), Buffer(all.data(), all.size()));
  std::vector<int> ranks;
  for (size_t r = 0; colour >= 0 && r < p; ++r) {
    if (all[2 * r] == colour) ranks.push_back(static_cast<int>(r));
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[2 * static_cast<size_t>(a) + 1] < all[2 * static_cast<size_t>(b) + 1];
  });
  return CreateFor(ranks, Text("/", ++children_, ":", colour));
}

std::unique_ptr<Communicator> Communicator::Subset(const std::vector<int>& ranks) {
  std::vector<bool> seen(static_cast<size_t>(size()));
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size() || seen[static_cast<size_t>(rank)]) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              "subset: rank ", rank,
              rank < 0 || rank >= size() ? " does not exist" : " is listed twice",
              "; expected different ranks from 0 to ", size() - 1));
    }
    seen[static_cast<size_t>(rank)] = true;
  }
  const std::string mine = base::RankList(ranks);
  const std::vector<std::string> lists = AllGatherBytes(*this, mine);
  for (size_t r = 1; r < lists.size(); ++r) {
    if (lists[r] == lists[0]) continue;
    throw Error(
        ErrorCode::kMismatch,
        Text(
            "the ranks disagree on the members of a subset: ", members().List({0}), " listed ",
            lists[0], "; ", members().List({static_cast<int>(r)}), " listed ", lists[r]));
  }
  const bool member = std::find(ranks.begin(), ranks.end(), rank()) != ranks.end();
  return CreateFor(member ? ranks : std::vector<int>{}, Text("/", ++children_));
}

// --- memory of GPUs ------------------------------------------------------------------------------

DeviceGroup& Communicator::device_group(int device) {
  if (device_group_ == nullptr) {
    if (make_device_group_ == nullptr) {
      throw Error(
          ErrorCode::kUnavailable, Text("GPU ", device, ": no backend here reaches GPU memory"));
    }
    device_group_ = make_device_group_(*this, device);
  }
  if (device_group_->device() != device) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "the data lies on GPU ", device, "; expected GPU ", device_group_->device(),
            ", which this rank has used in ", members().name, " before"));
  }
  return *device_group_;
}

std::unique_ptr<Memory> Communicator::AllocateOnDevice(int device, uint64_t bytes) {
  return device_group(device).Allocate(bytes);
}

void Communicator::CheckDevice() {
  if (device_group_ != nullptr) device_group_->Check();
}

// --- memory -------------------------------------------------------------------------------------

std::unique_ptr<Memory> Communicator::AllocateShared(uint64_t bytes) {
  throw Error(
      ErrorCode::kUnavailable,
      Text(
          "cannot allocate ", bytes, " bytes of memory that all ranks share: the backend is ",
          backend(), "; expected shm, with all ranks on one host"));
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
  // With huge pages, long walks need fewer page-table look-ups. The call is only advice.
  ::madvise(data, std::max<uint64_t>(bytes, 1), MADV_HUGEPAGE);
  return std::make_unique<PrivateMemory>(data, bytes);
}

void Keep(std::unique_ptr<Memory> memory) {
  // Never destroyed: this process cannot know when its peers end.
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Memory>>;
  std::lock_guard lock(*mutex);
  kept->push_back(std::move(memory));
}

// The generic update, for every backend: a reduce_scatter in place, the pieces of this rank's
// share, and an all_gather in place. If the backend can update in one pass (shm), that comes first.

Range ShareOf(const Counts& shares, int rank) {
  Range share;
  for (int r = 0; r < rank; ++r) share.begin += shares[static_cast<size_t>(r)];
  share.count = shares[static_cast<size_t>(rank)];
  return share;
}

void UpdateInPieces(Buffer reduced, Range share, double factor, const ShareUpdate::Piece& update) {
  const uint64_t piece = kPieceBytes / SizeOf(reduced.dtype);
  std::vector<uint64_t> scratch(factor == 1 ? 0 : kPieceBytes / sizeof(uint64_t));
  for (uint64_t done = 0; done < share.count; done += piece) {
    const uint64_t first = share.begin + done, count = std::min(piece, share.count - done);
    const void* values = reduced.Slice(first, count).data;
    if (factor != 1) {
      void* scaled = scratch.data();
      Reduce(
          &values, 1, &scaled, 1, count, reduced.dtype,
          {.op = ReduceOp::kSum, .scale = {1, factor}});
      values = scaled;
    }
    update(first, count, values);
  }
}

void Communicator::ReduceUpdateGather(
    Buffer input, Buffer output, ReduceOp op, Scale scale, Counts shares,
    const ShareUpdate& update) {
  Update(
      {
          .kind = CollectiveKind::kReduceUpdateGather,
          .input = input,
          .output = output,
          .op = op,
          .scale = scale,
          .send_counts = std::move(shares),
      },
      update);
}

void Communicator::ReduceUpdate(
    Buffer input, ReduceOp op, Scale scale, Counts shares, const ShareUpdate& update) {
  Update(
      {
          .kind = CollectiveKind::kReduceUpdate,
          .input = input,
          .op = op,
          .scale = scale,
          .send_counts = std::move(shares),
      },
      update);
}

void Communicator::Update(const Collective& collective, const ShareUpdate& update) {
  CheckArguments(collective, rank(), size());
  if (UpdateInOnePass(collective, update)) return;
  const Buffer &input = collective.input, &output = collective.output;
  const Counts& shares = collective.send_counts;
  const Range own = ShareOf(shares, rank());
  StartReduceScatter(
      input, input.Slice(own.begin, own.count), collective.op, collective.scale, shares)
      .Wait();
  UpdateInPieces(input, own, 1, update.piece);
  if (collective.kind == CollectiveKind::kReduceUpdate) {
    Barrier();
  } else {
    StartAllGather(output.Slice(own.begin, own.count), output, shares).Wait();
  }
}

}  // namespace dtrun::ops

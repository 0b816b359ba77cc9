// NCCL runs all operations of a group in one high-priority stream of the group. So they run in the
// order of the calls, whichever streams the program uses. If both are ready, they run before the
// program's kernels. One event makes this stream wait for the stream of the buffers. A second event
// makes the stream of the buffers wait for the result. While a graph is captured, both events
// become parts of it.
//
// If NCCL has no operation for a collective, the group makes it of sends and receives. NCCL treats
// a group of them as one operation. NCCL has no arithmetic for bools, 16-bit integers, averages and
// scales of integers, and scaled extrema and products. For these, the ranks gather the inputs in
// pieces, and a kernel of dtrun reduces them.
//
// If a factor multiplies inputs without rounding, NCCL multiplies the inputs by it. Any other
// factor is multiplied into the sum, as in all backends.
//
// NCCL adds in its own order. Sums have the same bits on all ranks and in every run over the same
// GPUs. The balanced tree of the other backends gives other bits.

#include "ops/nccl/nccl_group.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/cuda/host_staged_group.h"
#include "ops/nccl/nccl_api.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {
namespace {

using base::Text;

// NCCL's type for elements of `dtype`, if NCCL can combine them.
std::optional<ncclDataType_t> CombinedType(DType dtype) {
  switch (dtype) {
    case DType::kU8: return ncclUint8;
    case DType::kI8: return ncclInt8;
    case DType::kU32: return ncclUint32;
    case DType::kI32: return ncclInt32;
    case DType::kU64: return ncclUint64;
    case DType::kI64: return ncclInt64;
    case DType::kF16: return ncclFloat16;
    case DType::kBF16: return ncclBfloat16;
    case DType::kF32: return ncclFloat32;
    case DType::kF64: return ncclFloat64;
    default: return std::nullopt;
  }
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

// Bytes of each rank's input in one gather, for reductions by a kernel of dtrun.
constexpr uint64_t kPieceBytes = 256 << 10;

bool AllEqual(const Counts& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

// The factor that multiplies every input before the sum.
double FactorOf(const Collective& collective, int size) {
  const double divisor = collective.divisor == 0 ? size : collective.divisor;
  const double average = collective.op == ReduceOp::kAverage ? 1 / divisor : 1;
  return collective.scale.before * collective.scale.after * average;
}

bool IsPowerOfTwo(double factor) {
  int exponent = 0;
  return factor > 0 && std::isfinite(factor) && std::frexp(factor, &exponent) == 0.5;
}

// The code that does the arithmetic of a reduction.
enum class Way {
  kNccl,        // NCCL; a factor multiplies inputs without rounding
  kThenFinish,  // NCCL adds, and a kernel of dtrun multiplies the sum
  kHere,        // a kernel of dtrun
};

Way WayOf(const Collective& collective, int size) {
  if (!CombinedType(collective.input.dtype)) return Way::kHere;
  const bool scaled = collective.scale.before != 1 || collective.scale.after != 1;
  const bool adds = collective.op == ReduceOp::kSum || collective.op == ReduceOp::kAverage;
  if (!adds) return scaled ? Way::kHere : Way::kNccl;
  const double factor = FactorOf(collective, size);
  if (!scaled && factor == 1) return Way::kNccl;
  if (!IsFloat(collective.input.dtype)) return Way::kHere;
  if (IsPowerOfTwo(factor)) return Way::kNccl;
  return collective.scale.before == 1 ? Way::kThenFinish : Way::kHere;
}

// A factor as a bit pattern of its type, the form that NCCL takes.
struct Factor {
  alignas(8) unsigned char bytes[8] = {};

  Factor(double value, DType dtype) {
    if (dtype == DType::kF64) {
      std::memcpy(bytes, &value, sizeof value);
      return;
    }
    const float single = static_cast<float>(value);
    if (dtype == DType::kF32) {
      std::memcpy(bytes, &single, sizeof single);
    } else {
      Convert(&single, DType::kF32, bytes, dtype, 1);
    }
  }
};

class NcclGroup : public DeviceGroup {
 public:
  NcclGroup(
      const NcclApi& api, ncclComm_t comm, const gpu::Device& device, const Communicator& host,
      NcclWatch::Patience patience)
      : api_(api),
        comm_(comm),
        device_(device),
        rank_(host.rank()),
        size_(host.size()),
        members_(host.members()),
        stream_(device, gpu::Priority::kHigh),
        fork_(device),
        join_(device),
        barrier_(device, 256),
        pieces_(device, static_cast<uint64_t>(host.size()) * kPieceBytes),
        watch_(std::make_unique<NcclWatch>(api, comm, device, patience, members_.name)) {
    gpu::Kernels::LoadAll(device);
  }

  ~NcclGroup() override {
    watch_->Stop();
    const gpu::DeviceScope scope(device_);
    // Waits for the operations under way. If the watch has aborted, they have ended.
    if (!watch_->aborted()) api_.ncclCommDestroy(comm_);
  }

  const char* backend() const override { return "nccl"; }
  int device() const override { return device_.index(); }
  void Check() override { watch_->Check(); }
  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    return cuda::AllocateOnGpu(device_, bytes);
  }

  void Enqueue(const Collective& collective) override;

 private:
  void Do(const Collective& collective);
  void Combine(const Collective& collective, double factor);
  void CombineAndFinish(const Collective& collective);
  void CombineHere(const Collective& collective);
  void Move(const Collective& collective);
  void Broadcast(const Buffer& from, const Buffer& to, int root);
  void Send(const Buffer& part, int to);
  void Receive(const Buffer& part, int from);
  void CopyOwn(const Buffer& to, const Buffer& from);
  Buffer PartTo(const Collective& c, int destination) const;  // of the input
  Buffer PartFrom(const Collective& c, int source) const;     // of the output
  // Makes all operations that `start` starts one operation of NCCL.
  void AsOne(const std::function<void()>& start);
  void CheckNccl(ncclResult_t result, const char* call) const { api_.Check(result, call, comm_); }
  cudaStream_t stream() const { return reinterpret_cast<cudaStream_t>(stream_.get()); }

  const NcclApi& api_;
  ncclComm_t comm_;
  const gpu::Device& device_;
  int rank_, size_;
  Members members_;
  gpu::Stream stream_;
  gpu::Event fork_, join_;
  gpu::DeviceMemory barrier_;
  gpu::DeviceMemory pieces_;  // gathered from all ranks, for reductions by a kernel of dtrun
  uint64_t sequence_ = 0;
  std::unique_ptr<NcclWatch> watch_;
};

void NcclGroup::Enqueue(const Collective& collective) {
  Check();
  ++sequence_;
  auto* caller = static_cast<CUstream>(StreamOf(collective, rank_));
  const gpu::DeviceScope scope(device_);
  fork_.Record(caller);
  fork_.Delay(stream_.get());
  Do(collective);
  // Operations in a graph run when the graph is launched, and the group does not see that launch.
  if (!gpu::IsCapturing(stream_.get()))
    watch_->Add(NameOperation(CallOf(collective, rank_), sequence_, members_), stream_.get());
  join_.Record(stream_.get());
  join_.Delay(caller);
}

void NcclGroup::Do(const Collective& collective) {
  switch (collective.kind) {
    case CollectiveKind::kBarrier:
      return CheckNccl(
          api_.ncclAllReduce(
              barrier_.as<void>(), barrier_.as<void>(), 1, ncclUint8, ncclSum, comm_, stream()),
          "ncclAllReduce");
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReduceScatter:
      switch (WayOf(collective, size_)) {
        case Way::kNccl: return Combine(collective, FactorOf(collective, size_));
        case Way::kThenFinish: return CombineAndFinish(collective);
        case Way::kHere: return CombineHere(collective);
      }
      return;
    default: return Move(collective);
  }
}

// ---- reductions by NCCL

// NCCL's op for a reduction. An op with a factor is created for the operation, and must exist until
// the operation is enqueued.
class NcclOp {
 public:
  NcclOp(const NcclApi& api, ncclComm_t comm, const Collective& collective, double factor)
      : api_(api), comm_(comm) {
    switch (collective.op) {
      case ReduceOp::kMin: op_ = ncclMin; return;
      case ReduceOp::kMax: op_ = ncclMax; return;
      case ReduceOp::kProduct: op_ = ncclProd; return;
      default: break;
    }
    if (factor == 1) return;
    const DType dtype = collective.input.dtype;
    Factor scalar(factor, dtype);
    api.Check(
        api.ncclRedOpCreatePreMulSum(
            &op_, scalar.bytes, *CombinedType(dtype), ncclScalarHostImmediate, comm),
        "ncclRedOpCreatePreMulSum", comm);
    made_ = true;
  }
  ~NcclOp() {
    if (made_) api_.ncclRedOpDestroy(op_, comm_);
  }
  NcclOp(const NcclOp&) = delete;
  NcclOp& operator=(const NcclOp&) = delete;
  ncclRedOp_t get() const { return op_; }

 private:
  const NcclApi& api_;
  ncclComm_t comm_;
  ncclRedOp_t op_ = ncclSum;
  bool made_ = false;
};

void NcclGroup::Combine(const Collective& collective, double factor) {
  const Buffer &input = collective.input, &output = collective.output;
  if (input.count == 0) return;
  const ncclDataType_t type = *CombinedType(input.dtype);
  const NcclOp op(api_, comm_, collective, factor);
  if (collective.kind == CollectiveKind::kAllReduce)
    return CheckNccl(
        api_.ncclAllReduce(input.data, output.data, input.count, type, op.get(), comm_, stream()),
        "ncclAllReduce");
  if (collective.kind == CollectiveKind::kReduce)
    return CheckNccl(
        api_.ncclReduce(
            input.data, output.data, input.count, type, op.get(), collective.root, comm_, stream()),
        "ncclReduce");
  const Counts shares = SharesOf(collective, size_);
  if (AllEqual(shares))
    return CheckNccl(
        api_.ncclReduceScatter(input.data, output.data, shares[0], type, op.get(), comm_, stream()),
        "ncclReduceScatter");
  AsOne([&] {
    uint64_t begin = 0;
    for (int r = 0; r < size_; ++r) {
      const Buffer share = input.Slice(begin, shares[static_cast<size_t>(r)]);
      begin += share.count;
      if (share.count == 0) continue;
      CheckNccl(
          api_.ncclReduce(
              share.data, r == rank_ ? output.data : share.data, share.count, type, op.get(), r,
              comm_, stream()),
          "ncclReduce");
    }
  });
}

void NcclGroup::CombineAndFinish(const Collective& collective) {
  Combine(collective, 1);
  if (!UsesOutput(collective, rank_)) return;
  cuda::ReduceArgs args = cuda::ReduceArgsOf(collective, size_, 1);
  args.arrays = static_cast<const char*>(collective.output.data);
  cuda::EnqueueReduce(device_, args, collective.output, stream_.get());
}

// ---- reductions by a kernel of dtrun

// Gathers the inputs of all ranks in pieces, and reduces the part that this rank needs.
void NcclGroup::CombineHere(const Collective& collective) {
  const Buffer &input = collective.input, &output = collective.output;
  const Range wanted = ResultOf(collective, rank_, size_);
  cuda::ReduceArgs args = cuda::ReduceArgsOf(collective, size_, size_);
  const uint64_t piece = kPieceBytes / SizeOf(input.dtype);
  for (uint64_t begin = 0; begin < input.count; begin += piece) {
    const Buffer part = input.Slice(begin, std::min(piece, input.count - begin));
    CheckNccl(
        api_.ncclAllGather(part.data, pieces_.as<void>(), part.bytes(), ncclUint8, comm_, stream()),
        "ncclAllGather");
    const uint64_t first = std::max(begin, wanted.begin);
    const uint64_t end = std::min(begin + part.count, wanted.begin + wanted.count);
    if (first >= end) continue;
    args.arrays = pieces_.as<char>() + (first - begin) * SizeOf(input.dtype);
    args.stride = part.bytes();
    const Buffer result = output.Slice(first - wanted.begin, end - first);
    cuda::EnqueueReduce(device_, args, result, stream_.get());
  }
}

// ---- data movement

void NcclGroup::AsOne(const std::function<void()>& start) {
  CheckNccl(api_.ncclGroupStart(), "ncclGroupStart");
  try {
    start();
  } catch (...) {
    api_.ncclGroupEnd();
    throw;
  }
  CheckNccl(api_.ncclGroupEnd(), "ncclGroupEnd");
}

void NcclGroup::Send(const Buffer& part, int to) {
  if (part.count == 0 || to == rank_) return;
  CheckNccl(api_.ncclSend(part.data, part.bytes(), ncclUint8, to, comm_, stream()), "ncclSend");
}

void NcclGroup::Receive(const Buffer& part, int from) {
  if (part.count == 0 || from == rank_) return;
  CheckNccl(api_.ncclRecv(part.data, part.bytes(), ncclUint8, from, comm_, stream()), "ncclRecv");
}

void NcclGroup::CopyOwn(const Buffer& to, const Buffer& from) {
  if (to.count == 0) return;
  gpu::CopyOnDevice(gpu::AddressOf(to.data), gpu::AddressOf(from.data), to.bytes(), stream_.get());
}

Buffer NcclGroup::PartFrom(const Collective& c, int source) const {
  const Range part = ReceivedFrom(c, rank_, size_, source);
  return c.output.Slice(part.begin, part.count);
}

Buffer NcclGroup::PartTo(const Collective& c, int destination) const {
  const Range part = SentTo(c, rank_, size_, destination);
  return c.input.Slice(part.begin, part.count);
}

void NcclGroup::Broadcast(const Buffer& from, const Buffer& to, int root) {
  if (to.count == 0) return;
  CheckNccl(
      api_.ncclBroadcast(from.data, to.data, to.bytes(), ncclUint8, root, comm_, stream()),
      "ncclBroadcast");
}

void NcclGroup::Move(const Collective& c) {
  switch (c.kind) {
    case CollectiveKind::kBroadcast: {
      const Buffer& buffer = rank_ == c.root ? c.input : c.output;
      return Broadcast(buffer, buffer, c.root);
    }
    case CollectiveKind::kAllGather:
      if (AllEqual(c.receive_counts)) {
        if (c.input.count == 0) return;
        return CheckNccl(
            api_.ncclAllGather(
                c.input.data, c.output.data, c.input.bytes(), ncclUint8, comm_, stream()),
            "ncclAllGather");
      }
      return AsOne([&] {
        for (int r = 0; r < size_; ++r) {
          const Buffer part = PartFrom(c, r);
          Broadcast(r == rank_ ? c.input : part, part, r);
        }
      });
    case CollectiveKind::kSend: return Send(c.input, c.root);
    case CollectiveKind::kReceive: return Receive(c.output, c.root);
    default: break;
  }
  if (base::TraitsOf(c.kind).does != base::CollectiveTraits::Does::kMove)
    throw Error(
        ErrorCode::kUnavailable, Text(NameOf(c.kind), ": nccl has no such operation on a GPU"));
  CopyOwn(PartFrom(c, rank_), PartTo(c, rank_));
  AsOne([&] {
    for (int r = 0; r < size_; ++r) {
      Send(PartTo(c, r), r);
      Receive(PartFrom(c, r), r);
    }
  });
}

// ---- setup

// The host and the bus id of a GPU. Two ranks may use the same number for different GPUs.
std::string PlaceOf(const gpu::Device& device) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string host;
  std::getline(file, host);
  return host + " " + device.bus_id();
}

}  // namespace

std::string ProbeNccl(Communicator& host, const gpu::Device& device) {
  const std::vector<std::string> places = AllGatherBytes(host, PlaceOf(device));
  for (size_t a = 0; a < places.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (places[a] != places[b]) continue;
      return Text(
          host.members().List({static_cast<int>(b), static_cast<int>(a)}), " use one GPU, ",
          places[a].substr(places[a].rfind(' ') + 1));
    }
  }
  NcclApi::Get();
  return "";
}

std::unique_ptr<DeviceGroup> CreateNcclGroup(Communicator& host, const gpu::Device& device) {
  const NcclApi* api = nullptr;
  ncclUniqueId id = {};
  cuda::AgreeOn(host, [&] {
    api = &NcclApi::Get();
    if (host.rank() == 0) api->Check(api->ncclGetUniqueId(&id), "ncclGetUniqueId");
  });
  host.Broadcast(Buffer(id.internal, sizeof id.internal, DType::kU8), 0);
  ncclComm_t comm = nullptr;
  cuda::AgreeOn(host, [&] {
    const gpu::DeviceScope scope(device);
    api->Check(api->ncclCommInitRank(&comm, host.size(), id, host.rank()), "ncclCommInitRank");
  });
  static const base::SteadyClock steady;  // for a communicator without an engine
  const NcclWatch::Patience patience =
      host.engine() == nullptr
          ? NcclWatch::Patience{EngineOptions().timeout, steady}
          : NcclWatch::Patience{host.engine()->options().timeout, host.engine()->clock()};
  std::unique_ptr<DeviceGroup> group;
  cuda::AgreeOn(
      host, [&] { group = std::make_unique<NcclGroup>(*api, comm, device, host, patience); });
  return group;
}

}  // namespace dtrun::ops

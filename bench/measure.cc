#include "bench/measure.h"

#include <dtrun/objects.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

extern char** environ;

namespace dtrun::bench {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The value of an Open MPI variable in this process. A file, the environment or Open MPI itself may
// have set the variable.
bool ReadPeerFlag(const char* name) {
  int provided = 0, index = 0, count = 0, value = 0;
  MPI_T_cvar_handle handle;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return false;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    MPI_T_cvar_read(handle, &value);
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return value != 0;
}

// Whether mpirun or dtrun sets the variable to start ranks, and not to choose how ranks
// communicate.
bool StartsRanks(const std::string& variable) {
  for (const char* part :
       {"orte_", "ess", "pmix", "plm", "odls", "rmaps", "hwloc", "initial_wdir", "shmem_RUNTIME",
        "mpi_oversubscribe", "btl_sm_backing", "btl_vader_backing"}) {
    if (variable.rfind(std::string("OMPI_MCA_") + part, 0) == 0) return true;
  }
  return false;
}

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<double> MeasureInTurn(
    Communicator& comm, const std::vector<std::function<void()>>& sides, int least_rounds,
    Warmth warmth) {
  const auto timed = [&](const std::function<void()>& call, int batch) {
    comm.Barrier();
    const double start = Now();
    for (int i = 0; i < batch; ++i) call();
    double seconds = (Now() - start) / batch;
    comm.AllReduce(Buffer(&seconds, 1), ReduceOp::kMax);
    return seconds * 1e6;
  };
  // If a call takes half a second or more, one call is enough to be warm.
  double once = 0.01;
  std::vector<bool> cools_down;
  for (const auto& side : sides) {
    double warm = 0;
    for (int i = 0; i < 3 && warm < 5e5; ++i) warm = timed(side, 1);
    once = std::max(once, warm < 5e5 ? timed(side, 3) : warm);
    cools_down.push_back(warmth == Warmth::kWarm && warm < 1e6);
  }
  const int batch = static_cast<int>(std::clamp(2000 / once, 1.0, 1000.0));
  const double least = least_rounds, most = std::max(least, 201.0);
  const int rounds = static_cast<int>(std::clamp(1e6 / (once * batch), least, most));
  std::vector<std::vector<double>> times(sides.size());
  for (int i = 0; i < rounds; ++i) {
    for (size_t side = 0; side < sides.size(); ++side) {
      if (cools_down[side]) timed(sides[side], 1);
      times[side].push_back(timed(sides[side], batch));
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_side : times) medians.push_back(Median(of_side));
  return medians;
}

Times Measure(Communicator& comm, CollectiveCase& measured, int least_rounds) {
  std::vector<std::function<void()>> sides = {[&] { measured.Ours(); }};
  if (measured.has_peer()) sides.emplace_back([&] { measured.Peers(); });
  const std::vector<double> times = MeasureInTurn(comm, sides, least_rounds);
  return {times[0], measured.has_peer() ? times[1] : 0};
}

MemorySpeed MeasureMemorySpeed(Communicator& comm) {
  constexpr size_t kBytes = 64 << 20;
  std::vector<float> first(kBytes / sizeof(float), 1), second(first);
  // The median of the seconds until the last rank is done.
  const auto timed = [&](const auto& work) {
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) {
      comm.Barrier();
      const double start = Now();
      work();
      comm.Barrier();
      double seconds = Now() - start;
      comm.AllReduce(Buffer(&seconds, 1), ReduceOp::kMax);
      times.push_back(seconds);
    }
    return Median(times);
  };
  const double copy = timed([&] {
    if (comm.rank() == 0) std::memcpy(second.data(), first.data(), kBytes);
  });
  const double in_place = timed([&] {
    float* __restrict a = first.data();
    float* __restrict b = second.data();
    for (size_t i = 0; i < first.size(); ++i) a[i] = b[i] = a[i] + b[i];
  });
  return {kBytes / copy / 1e9, comm.size() * 4.0 * kBytes / in_place / 1e9};
}

// Whether this rank is the lowest rank that uses this kernel. Several hosts may be namespaces of
// one machine.
bool SpeaksForItsKernel(Context& job) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  const std::vector<std::string> boots = dtrun::AllGatherBytes(job.world(), boot);
  return std::find(boots.begin(), boots.end(), boot) - boots.begin() == job.rank();
}

double ForeignShare(Context& job, const CpuWatch& watch) {
  double own = watch.OwnSeconds();
  double host[2] = {0, 0};
  if (SpeaksForItsKernel(job)) {
    host[0] = watch.HostSeconds();
    host[1] = watch.AvailableSeconds();
  }
  job.world().AllReduce(Buffer(&own, 1));
  job.world().AllReduce(Buffer(host, 2));
  return std::max(0.0, host[0] - own) / host[1];
}

PeerSettings ReadPeerSettings() {
  PeerSettings settings;
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  settings.version = std::string(version).substr(0, std::string(version).find(','));
  settings.yields_when_idle = ReadPeerFlag("mpi_yield_when_idle");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    if (variable.rfind("OMPI_MCA_", 0) == 0 && !StartsRanks(variable)) {
      settings.variables.push_back(variable);
    }
  }
  std::sort(settings.variables.begin(), settings.variables.end());
  return settings;
}

bool Oversubscribed(const Context& job) {
  return job.local_size() > ::sysconf(_SC_NPROCESSORS_ONLN);
}

namespace {

constexpr Op kOps[] = {Op::kAllReduce, Op::kReduceScatter, Op::kAllGather,
                       Op::kBroadcast, Op::kAllToAll,      Op::kReduce,
                       Op::kGather,    Op::kScatter,       Op::kSendReceive};
constexpr DType kDTypes[] = {DType::kU8,  DType::kI8,   DType::kU16, DType::kI16,
                             DType::kU32, DType::kI32,  DType::kU64, DType::kI64,
                             DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

bool Combines(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
}

// Whether the largest buffer consists of one part per rank.
bool HasParts(Op op) {
  return op == Op::kReduceScatter || op == Op::kAllGather || op == Op::kAllToAll ||
         op == Op::kGather || op == Op::kScatter;
}

// MPI 3 has no 16-bit floats. It can move them as integers, but cannot add them.
MPI_Datatype PeerType(Op op, DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kBool: return MPI_UINT8_T;
    case DType::kI8: return MPI_INT8_T;
    case DType::kU16: return MPI_UINT16_T;
    case DType::kI16: return MPI_INT16_T;
    case DType::kU32: return MPI_UINT32_T;
    case DType::kI32: return MPI_INT32_T;
    case DType::kU64: return MPI_UINT64_T;
    case DType::kI64: return MPI_INT64_T;
    case DType::kF16:
    case DType::kBF16: return Combines(op) ? MPI_DATATYPE_NULL : MPI_UINT16_T;
    case DType::kF32: return MPI_FLOAT;
    case DType::kF64: return MPI_DOUBLE;
  }
  return MPI_DATATYPE_NULL;
}

template <typename T>
void Store(void* to, unsigned value) {
  const T stored = static_cast<T>(value);
  std::memcpy(to, &stored, sizeof stored);
}

// Writes the bits of a small whole number, which every type represents exactly.
void Encode(DType dtype, unsigned value, void* to) {
  switch (dtype) {
    case DType::kU8:
    case DType::kI8:
    case DType::kBool: return Store<uint8_t>(to, value);
    case DType::kU16:
    case DType::kI16: return Store<uint16_t>(to, value);
    case DType::kU32:
    case DType::kI32: return Store<uint32_t>(to, value);
    case DType::kU64:
    case DType::kI64: return Store<uint64_t>(to, value);
    case DType::kF32: return Store<float>(to, value);
    case DType::kF64: return Store<double>(to, value);
    case DType::kF16:
    case DType::kBF16: break;
  }
  // Narrows the exponent and the mantissa of the f32.
  const float wide = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof bits);
  if (dtype == DType::kBF16) return Store<uint16_t>(to, bits >> 16);
  Store<uint16_t>(to, value == 0 ? 0 : (bits >> 13) - ((127 - 15) << 10));
}

}  // namespace

const char* NameOf(Op op) {
  switch (op) {
    case Op::kAllReduce: return "all_reduce";
    case Op::kReduceScatter: return "reduce_scatter";
    case Op::kAllGather: return "all_gather";
    case Op::kBroadcast: return "broadcast";
    case Op::kAllToAll: return "all_to_all";
    case Op::kReduce: return "reduce";
    case Op::kGather: return "gather";
    case Op::kScatter: return "scatter";
    case Op::kSendReceive: return "send_receive";
  }
  return "unknown";
}

const char* NameOf(Placement placement) {
  return placement == Placement::kMapped ? "mapped" : "private";
}

std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  for (const Op op : kOps) names.push_back(NameOf(op));
  return names;
}

std::vector<std::string> DTypeNames() {
  std::vector<std::string> names;
  for (const DType dtype : kDTypes) names.push_back(dtrun::NameOf(dtype));
  return names;
}

std::optional<Op> OpOf(const std::string& name) {
  for (const Op op : kOps) {
    if (name == NameOf(op)) return op;
  }
  return std::nullopt;
}

std::optional<DType> DTypeOf(const std::string& name) {
  for (const DType dtype : kDTypes) {
    if (name == dtrun::NameOf(dtype)) return dtype;
  }
  return std::nullopt;
}

double BusFactor(Op op, int size) {
  const double others = static_cast<double>(size - 1) / size;
  if (op == Op::kAllReduce) return 2 * others;
  return HasParts(op) ? others : 1;
}

CollectiveCase::CollectiveCase(
    Communicator& comm, Op op, DType dtype, Placement placement, uint64_t bytes)
    : comm_(comm),
      op_(op),
      dtype_(dtype),
      peer_type_(PeerType(op, dtype)),
      rank_(comm.rank()),
      size_(comm.size()) {
  const uint64_t parts = HasParts(op) ? static_cast<uint64_t>(size_) : 1;
  part_ = std::max<uint64_t>(bytes / SizeOf(dtype) / parts, 1);
  largest_ = part_ * parts;
  in_place_ = op == Op::kAllReduce || op == Op::kReduce || op == Op::kBroadcast;
  const bool root = rank_ == 0;
  input_count_ = op == Op::kAllGather || op == Op::kGather ? part_ : largest_;
  if (op == Op::kScatter && !root) input_count_ = 0;
  output_count_ = op == Op::kReduceScatter || op == Op::kScatter ? part_ : largest_;
  if ((op == Op::kGather || op == Op::kReduce) && !root) output_count_ = 0;

  input_ = Take(input_count_, placement);
  output_ = in_place_ ? input_ : Take(output_count_, placement);
  peer_input_ = Take(input_count_, Placement::kPrivate);
  peer_output_ = in_place_ ? peer_input_ : Take(output_count_, Placement::kPrivate);
}

// Writes the memory once, so that this rank's pages lie where this rank uses them. Aligns the
// memory to a cache line, as allocators of tensors do.
void* CollectiveCase::Take(uint64_t count, Placement placement) {
  const uint64_t bytes = count * SizeOf(dtype_);
  if (placement == Placement::kMapped) {
    mapped_.push_back(comm_.Allocate(bytes));
    if (bytes > 0) std::memset(mapped_.back().data(), 0, bytes);
    return mapped_.back().data();
  }
  private_.emplace_back(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(private_.back().data());
  return reinterpret_cast<void*>((address + 63) / 64 * 64);
}

void CollectiveCase::Ours() {
  const Buffer in(input_, input_count_, dtype_), out(output_, output_count_, dtype_);
  switch (op_) {
    case Op::kAllReduce: return comm_.AllReduce(in);
    case Op::kReduceScatter: return comm_.ReduceScatter(in, out);
    case Op::kAllGather: return comm_.AllGather(in, out);
    case Op::kBroadcast: return comm_.Broadcast(in, 0);
    case Op::kAllToAll: return comm_.AllToAll(in, out);
    case Op::kReduce: return comm_.Reduce(in, out, 0);
    case Op::kGather: return comm_.Gather(in, out, 0);
    case Op::kScatter: return comm_.Scatter(in, out, 0);
    case Op::kSendReceive: {
      Work received = comm_.StartReceive(out, (rank_ + size_ - 1) % size_);
      Work sent = comm_.StartSend(in, (rank_ + 1) % size_);
      received.Wait();
      return sent.Wait();
    }
  }
}

void CollectiveCase::Peers() {
  const MPI_Comm world = MPI_COMM_WORLD;
  const MPI_Datatype type = peer_type_;
  const int n = static_cast<int>(largest_), part = static_cast<int>(part_);
  void *in = peer_input_, *out = peer_output_;
  switch (op_) {
    case Op::kAllReduce: MPI_Allreduce(MPI_IN_PLACE, in, n, type, MPI_SUM, world); break;
    case Op::kReduceScatter: MPI_Reduce_scatter_block(in, out, part, type, MPI_SUM, world); break;
    case Op::kAllGather: MPI_Allgather(in, part, type, out, part, type, world); break;
    case Op::kBroadcast: MPI_Bcast(in, n, type, 0, world); break;
    case Op::kAllToAll: MPI_Alltoall(in, part, type, out, part, type, world); break;
    case Op::kReduce:
      MPI_Reduce(rank_ == 0 ? MPI_IN_PLACE : in, in, n, type, MPI_SUM, 0, world);
      break;
    case Op::kGather: MPI_Gather(in, part, type, out, part, type, 0, world); break;
    case Op::kScatter: MPI_Scatter(in, part, type, out, part, type, 0, world); break;
    case Op::kSendReceive:
      MPI_Sendrecv(
          in, n, type, (rank_ + 1) % size_, 0, out, n, type, (rank_ + size_ - 1) % size_, 0, world,
          MPI_STATUS_IGNORE);
      break;
  }
}

unsigned CollectiveCase::Input(int rank, uint64_t i) const {
  return static_cast<unsigned>((i + static_cast<uint64_t>(rank)) % 16);
}

// The expected element i of this rank's output.
unsigned CollectiveCase::Expected(uint64_t i) const {
  const uint64_t own = static_cast<uint64_t>(rank_) * part_;
  const int source = static_cast<int>(i / part_);
  switch (op_) {
    case Op::kAllReduce:
    case Op::kReduce:
    case Op::kReduceScatter: {
      unsigned sum = 0;
      for (int r = 0; r < size_; ++r) sum += Input(r, op_ == Op::kReduceScatter ? own + i : i);
      return sum;
    }
    case Op::kAllGather:
    case Op::kGather: return Input(source, i % part_);
    case Op::kAllToAll: return Input(source, own + i % part_);
    case Op::kBroadcast: return Input(0, i);
    case Op::kScatter: return Input(0, own + i);
    case Op::kSendReceive: return Input((rank_ + size_ - 1) % size_, i);
  }
  return 0;
}

uint64_t CollectiveCase::WrongHere() {
  const uint64_t element = SizeOf(dtype_);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < output_count_; ++i) {
    unsigned char expected[8];
    Encode(dtype_, Expected(i), expected);
    wrong += std::memcmp(static_cast<char*>(output_) + i * element, expected, element) != 0;
  }
  return wrong;
}

uint64_t CollectiveCase::Wrong() {
  for (uint64_t i = 0; i < input_count_; ++i) {
    Encode(dtype_, Input(rank_, i), static_cast<char*>(input_) + i * SizeOf(dtype_));
  }
  Ours();
  uint64_t wrong = WrongHere();
  comm_.AllReduce(Buffer(&wrong, 1));
  // The timed calls then add zeros, and never denormals or infinities.
  if (input_count_ > 0) std::memset(input_, 0, input_count_ * SizeOf(dtype_));
  return wrong;
}

}  // namespace dtrun::bench

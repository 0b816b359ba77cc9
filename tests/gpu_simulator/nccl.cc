// The functions of libnccl.so.2 that dtrun calls, for ranks that are threads or processes of this
// host. All ranks of a communicator share one file in memory, named by the unique id. Each rank has
// a slot in the file, and collectives go through the slots in pieces. Each ordered pair of ranks
// has a place for one piece of a message. Sums are computed in rank order, in f64 (integers in 64
// bits). As with the real library, all ranks must enqueue operations in the same order.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <nccl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kMostRanks = 16;
constexpr int kFirstMade = 16;  // the first number of ops that a program creates
constexpr size_t kSlotBytes = 64 << 10;

struct Shared {
  std::atomic<int> joined, ended;
  // The ranks that have come to the barrier, and the number of times that it has opened.
  std::atomic<uint32_t> came, opened;
  std::atomic<bool> aborted;
  // Messages from rank r to rank s: the number of pieces written and read.
  struct Message {
    std::atomic<uint64_t> written, read;
  } messages[kMostRanks][kMostRanks];
  unsigned char slots[kMostRanks][kSlotBytes];
  unsigned char pieces[kMostRanks][kMostRanks][4096];
};

void* Memory(const void* pointer) { return const_cast<void*>(pointer); }

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

// A reduce op. Each input is multiplied by `factor` first.
struct Op {
  ncclRedOp_t combines = ncclSum;
  double factor = 1;
};

template <typename T>
T Load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
T Combine(ncclRedOp_t op, T a, T b) {
  switch (op) {
    case ncclProd: return a * b;
    case ncclMin: return std::min(a, b);
    case ncclMax: return std::max(a, b);
    default: return a + b;
  }
}

template <typename T, typename Wide, typename ToWide, typename FromWide>
void Reduce(
    const std::vector<const unsigned char*>& inputs, unsigned char* output, size_t count,
    const Op& op, ToWide to_wide, FromWide from_wide) {
  for (size_t i = 0; i < count; ++i) {
    const auto input = [&](size_t r) {
      const Wide value = to_wide(Load<T>(inputs[r] + i * sizeof(T)));
      return op.factor == 1 ? value : static_cast<Wide>(value * op.factor);
    };
    Wide sum = input(0);
    for (size_t r = 1; r < inputs.size(); ++r) sum = Combine(op.combines, sum, input(r));
    if (op.combines == ncclAvg) sum = sum / static_cast<Wide>(inputs.size());
    const T value = from_wide(sum);
    std::memcpy(output + i * sizeof(T), &value, sizeof value);
  }
}

template <typename T, typename Wide>
void ReducePlain(
    const std::vector<const unsigned char*>& inputs, unsigned char* output, size_t count,
    const Op& op) {
  Reduce<T, Wide>(
      inputs, output, count, op, [](T x) { return static_cast<Wide>(x); },
      [](Wide x) { return static_cast<T>(x); });
}

void ReduceTyped(
    ncclDataType_t type, const std::vector<const unsigned char*>& inputs, unsigned char* output,
    size_t count, const Op& op) {
  switch (type) {
    case ncclInt8: return ReducePlain<int8_t, int64_t>(inputs, output, count, op);
    case ncclUint8: return ReducePlain<uint8_t, uint64_t>(inputs, output, count, op);
    case ncclInt32: return ReducePlain<int32_t, int64_t>(inputs, output, count, op);
    case ncclUint32: return ReducePlain<uint32_t, uint64_t>(inputs, output, count, op);
    case ncclInt64: return ReducePlain<int64_t, int64_t>(inputs, output, count, op);
    case ncclUint64: return ReducePlain<uint64_t, uint64_t>(inputs, output, count, op);
    case ncclFloat32: return ReducePlain<float, double>(inputs, output, count, op);
    case ncclFloat64: return ReducePlain<double, double>(inputs, output, count, op);
    case ncclFloat16:
      return Reduce<__half, double>(
          inputs, output, count, op, [](__half x) { return double{__half2float(x)}; },
          [](double x) { return __float2half(static_cast<float>(x)); });
    case ncclBfloat16:
      return Reduce<__nv_bfloat16, double>(
          inputs, output, count, op, [](__nv_bfloat16 x) { return double{__bfloat162float(x)}; },
          [](double x) { return __float2bfloat16(static_cast<float>(x)); });
    default: std::abort();
  }
}

// Enqueues `task` into the stream.
void Later(CUstream stream, std::function<void()> task) {
  static auto* const launch = reinterpret_cast<decltype(&::cuLaunchHostFunc)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc"));
  // Never freed, because a graph may run the task again.
  auto* kept = new std::function<void()>(std::move(task));
  launch(
      stream, [](void* data) { (*static_cast<std::function<void()>*>(data))(); }, kept);
}

}  // namespace

struct ncclComm {
  Shared* shared = nullptr;
  int rank = 0, size = 0;
  std::vector<double> factors = {};  // of the created ops, from number kFirstMade on

  // True after an abort on this rank. As with the real library, operations of other ranks keep
  // waiting. They end when those ranks learn of the abort (ncclCommGetAsyncError) and abort too.
  std::atomic<bool> ended = false;

  bool aborted() const { return ended; }
  void Barrier() {
    const uint32_t opened = shared->opened;
    if (shared->came.fetch_add(1) + 1 == static_cast<uint32_t>(size)) {
      shared->came = 0;
      ++shared->opened;
    }
    while (shared->opened == opened && !aborted()) sched_yield();
  }
  // Calls `put` for this rank's slot. When all ranks have done so, calls `take`, which reads all
  // slots.
  template <typename Put, typename Take>
  void Meet(Put put, Take take) {
    if (aborted()) return;
    put(shared->slots[rank]);
    Barrier();
    if (!aborted()) take();
    Barrier();
  }
};

namespace {

// The operations of a group, which start when the group ends.
thread_local int group_depth = 0;
struct Grouped {
  CUstream stream;
  std::function<void()> task;
};
thread_local std::vector<Grouped> grouped;

ncclResult_t Start(ncclComm* comm, CUstream stream, std::function<void()> task) {
  if (comm->aborted()) return ncclInternalError;
  if (group_depth > 0) {
    grouped.push_back({stream, std::move(task)});
    return ncclSuccess;
  }
  Later(stream, std::move(task));
  return ncclSuccess;
}

// One message. It moves in pieces, so that all sends and receives of a group progress together.
struct Transfer {
  ncclComm* comm;
  unsigned char* data;
  size_t bytes;
  int peer;
  bool send;
  size_t done = 0;

  bool Advance() {
    constexpr size_t kPiece = sizeof comm->shared->pieces[0][0];
    const int from = send ? comm->rank : peer, to = send ? peer : comm->rank;
    Shared::Message& message = comm->shared->messages[from][to];
    unsigned char* piece = comm->shared->pieces[from][to];
    const size_t now = std::min(bytes - done, kPiece);
    if (send && message.written == message.read) {
      std::memcpy(piece, data + done, now);
      ++message.written;
    } else if (!send && message.written != message.read) {
      std::memcpy(data + done, piece, now);
      ++message.read;
    } else {
      return false;
    }
    done += now;
    return true;
  }
};

thread_local std::shared_ptr<std::vector<Transfer>> transfers;

void RunTransfers(std::vector<Transfer> all) {
  for (Transfer& transfer : all) transfer.done = 0;
  for (bool left = true; left;) {
    left = false;
    for (Transfer& transfer : all) {
      // Messages between two ranks keep their order.
      bool first = true;
      for (Transfer* before = all.data(); before != &transfer; ++before)
        first = first && (before->done == before->bytes || before->peer != transfer.peer ||
                          before->send != transfer.send);
      if (transfer.done == transfer.bytes) continue;
      left = true;
      if (first) transfer.Advance();
      if (transfer.comm->aborted()) return;
    }
    sched_yield();
  }
}

ncclResult_t StartTransfer(Transfer transfer, CUstream stream) {
  if (transfer.comm->aborted()) return ncclInternalError;
  if (group_depth == 0) {
    Later(stream, [transfer] { RunTransfers({transfer}); });
    return ncclSuccess;
  }
  if (transfers == nullptr) {
    transfers = std::make_shared<std::vector<Transfer>>();
    grouped.push_back({stream, [mine = transfers] { RunTransfers(*mine); }});
  }
  transfers->push_back(transfer);
  return ncclSuccess;
}

}  // namespace

EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "an error of the simulated NCCL";
}
EXPORT const char* ncclGetLastError(ncclComm_t) { return "said by the simulated NCCL"; }

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  static std::atomic<int> count = 0;
  std::snprintf(id->internal, sizeof id->internal, "/simulated_nccl.%d.%d", getpid(), ++count);
  const int file = shm_open(id->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return ncclSystemError;
  close(file);
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  if (size > kMostRanks || rank < 0 || rank >= size) return ncclInvalidArgument;
  const int file = shm_open(id.internal, O_RDWR, 0600);
  if (file < 0) return ncclSystemError;
  void* place = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (place == MAP_FAILED) return ncclSystemError;
  auto* made = new ncclComm{static_cast<Shared*>(place), rank, size};
  if (++made->shared->joined == size) shm_unlink(id.internal);
  while (made->shared->joined < size) sched_yield();
  *comm = made;
  return ncclSuccess;
}

EXPORT ncclResult_t
ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return ncclCommInitRank(comm, size, id, rank);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return ncclSuccess;
}

// The mapping stays, because a task of a stream may still read it.
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->shared->aborted = true;
  comm->ended = true;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->shared->aborted ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t* op, void* factor, ncclDataType_t type, ncclScalarResidence_t residence,
    ncclComm_t comm) {
  if (residence != ncclScalarHostImmediate) return ncclInvalidArgument;
  double value = 0;
  switch (type) {
    case ncclFloat16: value = __half2float(*static_cast<__half*>(factor)); break;
    case ncclBfloat16: value = __bfloat162float(*static_cast<__nv_bfloat16*>(factor)); break;
    case ncclFloat32: value = *static_cast<float*>(factor); break;
    case ncclFloat64: value = *static_cast<double*>(factor); break;
    default: return ncclInvalidArgument;
  }
  *op = static_cast<ncclRedOp_t>(kFirstMade + comm->factors.size());
  comm->factors.push_back(value);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

EXPORT ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  for (Grouped& each : grouped) Later(each.stream, std::move(each.task));
  grouped.clear();
  transfers = nullptr;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclAllReduce(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op,
    ncclComm_t comm, cudaStream_t stream) {
  Op made{op};
  if (op >= kFirstMade) made = {ncclSum, comm->factors.at(static_cast<size_t>(op) - kFirstMade)};
  return Start(comm, reinterpret_cast<CUstream>(stream), [=] {
    const size_t size = SizeOf(type), piece = kSlotBytes / size;
    std::vector<unsigned char> result(kSlotBytes);
    for (size_t first = 0; first < count; first += piece) {
      const size_t now = std::min(piece, count - first);
      comm->Meet(
          [&](unsigned char* slot) {
            std::memcpy(slot, static_cast<const unsigned char*>(input) + first * size, now * size);
          },
          [&] {
            std::vector<const unsigned char*> inputs;
            for (int r = 0; r < comm->size; ++r) inputs.push_back(comm->shared->slots[r]);
            ReduceTyped(type, inputs, result.data(), now, made);
            std::memcpy(
                static_cast<unsigned char*>(output) + first * size, result.data(), now * size);
          });
    }
  });
}

EXPORT ncclResult_t ncclReduce(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
    ncclComm_t comm, cudaStream_t stream) {
  if (comm->rank == root) return ncclAllReduce(input, output, count, type, op, comm, stream);
  auto unused = std::make_shared<std::vector<unsigned char>>(count * SizeOf(type));
  const ncclResult_t result = ncclAllReduce(input, unused->data(), count, type, op, comm, stream);
  // This task keeps `unused` alive until the reduction is done.
  Start(comm, reinterpret_cast<CUstream>(stream), [unused] {});
  return result;
}

EXPORT ncclResult_t ncclBroadcast(
    const void* input, void* output, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
    cudaStream_t stream) {
  return Start(comm, reinterpret_cast<CUstream>(stream), [=] {
    const size_t bytes = count * SizeOf(type);
    for (size_t first = 0; first < bytes; first += kSlotBytes) {
      const size_t now = std::min(kSlotBytes, bytes - first);
      comm->Meet(
          [&](unsigned char* slot) {
            if (comm->rank == root)
              std::memcpy(slot, static_cast<const unsigned char*>(input) + first, now);
          },
          [&] {
            std::memcpy(
                static_cast<unsigned char*>(output) + first, comm->shared->slots[root], now);
          });
    }
  });
}

EXPORT ncclResult_t ncclAllGather(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t comm,
    cudaStream_t stream) {
  return Start(comm, reinterpret_cast<CUstream>(stream), [=] {
    const size_t bytes = count * SizeOf(type);
    for (size_t first = 0; first < bytes; first += kSlotBytes) {
      const size_t now = std::min(kSlotBytes, bytes - first);
      comm->Meet(
          [&](unsigned char* slot) {
            std::memcpy(slot, static_cast<const unsigned char*>(input) + first, now);
          },
          [&] {
            for (int r = 0; r < comm->size; ++r)
              std::memcpy(
                  static_cast<unsigned char*>(output) + static_cast<size_t>(r) * bytes + first,
                  comm->shared->slots[r], now);
          });
    }
  });
}

EXPORT ncclResult_t ncclReduceScatter(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op,
    ncclComm_t comm, cudaStream_t stream) {
  const size_t size = SizeOf(type), all = count * static_cast<size_t>(comm->size);
  auto whole = std::make_shared<std::vector<unsigned char>>(all * size);
  const ncclResult_t result = ncclAllReduce(input, whole->data(), all, type, op, comm, stream);
  if (result != ncclSuccess) return result;
  return Start(comm, reinterpret_cast<CUstream>(stream), [=] {
    std::memcpy(
        output, whole->data() + static_cast<size_t>(comm->rank) * count * size, count * size);
  });
}

EXPORT ncclResult_t ncclSend(
    const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
    cudaStream_t stream) {
  return StartTransfer(
      {comm, static_cast<unsigned char*>(Memory(data)), count * SizeOf(type), peer, true},
      reinterpret_cast<CUstream>(stream));
}

EXPORT ncclResult_t ncclRecv(
    void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return StartTransfer(
      {comm, static_cast<unsigned char*>(data), count * SizeOf(type), peer, false},
      reinterpret_cast<CUstream>(stream));
}

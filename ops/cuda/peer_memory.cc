// The ranks exchange their memory once, when the group is made. Threads of one process share it
// directly. Processes pass file descriptors.

#include "ops/cuda/peer_memory.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/memory.h"
#include "ops/communicator/communicator_setup.h"

namespace dtrun::ops::cuda {
namespace {

using gpu::Check;
using gpu::Driver;

CUmemAllocationProp Properties(const gpu::Device& device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.index();
  return properties;
}

uint64_t RoundUp(const gpu::Device& device, uint64_t bytes) {
  const CUmemAllocationProp properties = Properties(device);
  size_t granularity = 0;
  Check(
      Driver::Get().cuMemGetAllocationGranularity(
          &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity");
  return (bytes + granularity - 1) / granularity * granularity;
}

CUmemAccessDesc Reader(int index) {
  CUmemAccessDesc reader = {};
  reader.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  reader.location.id = index;
  reader.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return reader;
}

// The device itself, and the devices of this process that reach it.
std::vector<CUmemAccessDesc> ReadersOf(const gpu::Device& device) {
  std::vector<CUmemAccessDesc> readers = {Reader(device.index())};
  for (int index = 0; index < gpu::DeviceCount(); ++index) {
    if (index == device.index()) continue;
    CUdevice other = 0;
    int reaches = 0;
    Check(Driver::Get().cuDeviceGet(&other, index), "cuDeviceGet");
    Check(
        Driver::Get().cuDeviceCanAccessPeer(&reaches, other, device.handle()),
        "cuDeviceCanAccessPeer");
    if (reaches != 0) readers.push_back(Reader(index));
  }
  return readers;
}

constexpr std::chrono::seconds kSetupTimeout(60);

// The identity of a rank, for comparison by the other ranks.
struct Identity {
  uint64_t process = 0;  // a random number of the process
  int device = 0;        // the number of the GPU in that process
};

// Throws unless `device` reaches GPU `other` of this process. Between processes, mapping the memory
// fails instead; threads share memory without mapping it.
void CheckReach(const gpu::Device& device, int other) {
  if (device.index() == other) return;
  int reaches = 0;
  Check(
      Driver::Get().cuDeviceCanAccessPeer(
          &reaches, device.handle(), gpu::Device::Get(other).handle()),
      "cuDeviceCanAccessPeer");
  if (reaches != 0) return;
  throw Error(
      ErrorCode::kUnavailable,
      base::Text("GPU ", device.index(), " does not reach the memory of GPU ", other));
}

uint64_t ThisProcess() {
  static const uint64_t number = [] {
    uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) ThrowErrno("getrandom");
    return random;
  }();
  return number;
}

template <typename T>
std::vector<T> Gather(Communicator& host, const T& mine) {
  std::vector<T> all;
  for (const std::string& bytes :
       AllGatherBytes(host, std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    all.push_back(value);
  }
  return all;
}

}  // namespace

const char* WhyNotExported(const gpu::Device& device) {
  if (device.Attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0)
    return "the GPU has no virtual memory management";
  if (device.Attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0)
    return "the GPU's memory cannot be exported as file descriptors";
  return "";
}

std::string WhyNotAtOnce(Communicator& host, const gpu::Device& device) {
  struct Place {
    uint64_t process = 0;
    char gpu[32] = "";
    bool takes_turns = false;
  };
  Place mine = {.process = ThisProcess()};
  device.bus_id().copy(mine.gpu, sizeof mine.gpu - 1);
  mine.takes_turns = device.Attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == 0;
  const std::vector<Place> all = Gather(host, mine);
  const std::vector<std::string>& hosts = host.members().hosts;
  const auto share = [&](size_t a, size_t b) {
    const bool one_host = hosts.empty() || hosts[a] == hosts[b];
    return one_host && all[a].process != all[b].process &&
           std::strcmp(all[a].gpu, all[b].gpu) == 0 && all[a].takes_turns;
  };
  for (size_t b = 0; b < all.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!share(a, b)) continue;
      return base::Text(
          host.members().List({static_cast<int>(a), static_cast<int>(b)}),
          " are processes that share a GPU without MPS, so that their kernels take turns");
    }
  }
  return "";
}

std::shared_ptr<ExportedMemory> ExportedMemory::Create(const gpu::Device& device, uint64_t bytes) {
  const gpu::DeviceScope scope(device);
  const std::shared_ptr<ExportedMemory> memory(new ExportedMemory(device));
  memory->bytes_ = RoundUp(device, bytes);
  gpu::CountMemory(device, memory->bytes_);
  memory->counted_ = true;
  const CUmemAllocationProp properties = Properties(device);
  const CUresult result =
      Driver::Get().cuMemCreate(&memory->handle_, memory->bytes_, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) gpu::ThrowOutOfMemory(device, memory->bytes_);
  Check(result, "cuMemCreate");
  memory->Map(ReadersOf(device));
  // The memset runs on the default stream. Other streams may not wait for it, so wait here.
  Check(
      Driver::Get().cuMemsetD8Async(memory->address_, 0, memory->bytes_, nullptr),
      "cuMemsetD8Async");
  Check(Driver::Get().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  return memory;
}

std::shared_ptr<ExportedMemory> ExportedMemory::Import(
    const gpu::Device& device, const FileDescriptor& handle, uint64_t bytes) {
  const gpu::DeviceScope scope(device);
  const std::shared_ptr<ExportedMemory> memory(new ExportedMemory(device));
  memory->bytes_ = RoundUp(device, bytes);
  Check(
      Driver::Get().cuMemImportFromShareableHandle(
          &memory->handle_, reinterpret_cast<void*>(static_cast<intptr_t>(handle.get())),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  memory->Map({Reader(device.index())});
  return memory;
}

void ExportedMemory::Map(const std::vector<CUmemAccessDesc>& readers) {
  const Driver& driver = Driver::Get();
  Check(driver.cuMemAddressReserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
  Check(driver.cuMemMap(address_, bytes_, 0, handle_, 0), "cuMemMap");
  mapped_ = true;
  Check(driver.cuMemSetAccess(address_, bytes_, readers.data(), readers.size()), "cuMemSetAccess");
}

ExportedMemory::~ExportedMemory() {
  const gpu::DeviceScope scope(device_);
  const Driver& driver = Driver::Get();
  if (mapped_) driver.cuMemUnmap(address_, bytes_);
  if (address_ != 0) driver.cuMemAddressFree(address_, bytes_);
  if (handle_ != 0) driver.cuMemRelease(handle_);
  if (counted_) gpu::UncountMemory(device_, bytes_);
}

FileDescriptor ExportedMemory::Export() const {
  int fd = -1;
  const gpu::DeviceScope scope(device_);
  Check(
      Driver::Get().cuMemExportToShareableHandle(
          &fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  return FileDescriptor(fd);
}

PeerMemory::PeerMemory(Communicator& host, const gpu::Device& device, uint64_t bytes) {
  const auto rank = static_cast<size_t>(host.rank()), size = static_cast<size_t>(host.size());
  const Identity mine = {ThisProcess(), device.index()};
  const std::vector<Identity> all = Gather(host, mine);
  const auto is_thread = [&](const Identity& other) { return other.process == mine.process; };
  std::shared_ptr<ExportedMemory> arena;
  std::shared_ptr<Segment> own_log;
  FileDescriptor handle;
  AgreeOn(host, [&] {
    for (const Identity& other : all) {
      if (is_thread(other)) CheckReach(device, other.device);
    }
    arena = ExportedMemory::Create(device, bytes);
    own_log = Segment::Create(CallLog::Bytes());
    if (!std::all_of(all.begin(), all.end(), is_thread)) handle = arena->Export();
  });
  arenas.assign(size, arena);
  std::vector<std::shared_ptr<Segment>> logs(size, own_log);
  if (size > 1) {
    CommunicatorBootstrap bootstrap(host);
    const auto exchange = ConnectDescriptorExchange(bootstrap, kSetupTimeout);
    // Threads copy each other's pointer. `arena` stays in place until all of them have done so.
    const std::vector<std::shared_ptr<ExportedMemory>*> pointers = Gather(host, &arena);
    const std::vector<FileDescriptor> handles = exchange->AllGather(handle.get());
    std::vector<FileDescriptor> log_handles = exchange->AllGather(own_log->fd());
    AgreeOn(host, [&] {
      for (size_t r = 0; r < size; ++r) {
        if (r == rank) continue;
        arenas[r] = is_thread(all[r]) ? *pointers[r]
                                      : ExportedMemory::Import(device, handles[r], arena->bytes());
        logs[r] = Segment::Map(std::move(log_handles[r]), CallLog::Bytes());
      }
    });
  }
  log = std::make_unique<CallLog>(std::move(logs), host.rank());
}

// The parts that Calls::Agree compares, as text. All ranks run the same build, so the hash of a
// text is the same on all of them.
uint64_t SignatureOf(const Collective& c, int rank, int size) {
  const bool typed = !base::OnlyMeets(c.kind);
  const DType dtype = UsesInput(c, rank) ? c.input.dtype : c.output.dtype;
  std::string text = base::Text(
      static_cast<int>(c.kind), ' ', typed ? static_cast<int>(dtype) : 0, ' ',
      static_cast<int>(c.op), ' ', c.root, ' ', c.divisor, ' ',
      std::bit_cast<uint64_t>(c.scale.before), ' ', std::bit_cast<uint64_t>(c.scale.after));
  Counts counts;
  if (Combines(c.kind)) {
    counts = c.send_counts;
    counts.push_back(c.input.count);
  } else if (c.kind == CollectiveKind::kBroadcast) {
    counts = {c.input.count};
  } else if (c.kind == CollectiveKind::kAllGather) {
    for (int r = 0; r < size; ++r) counts.push_back(ReceivedFrom(c, rank, size, r).count);
  }
  for (const uint64_t count : counts) text += base::Text(' ', count);
  return std::hash<std::string>()(text);
}

struct CallLog::Entry {
  uint32_t number;
  base::Call call;
  uint64_t sends[kMostRanks], receives[kMostRanks];
};

struct CallLog::Page {
  Entry entries[kKept];
};

CallLog::CallLog(std::vector<std::shared_ptr<Segment>> segments, int rank)
    : segments_(std::move(segments)), rank_(rank) {}

uint64_t CallLog::Bytes() { return sizeof(Page); }

CallLog::Page& CallLog::page(int rank) const {
  return *reinterpret_cast<Page*>(segments_[static_cast<size_t>(rank)]->data());
}

void CallLog::Write(uint32_t number, const Collective& collective) {
  Entry& entry = page(rank_).entries[number % kKept];
  std::atomic_ref(entry.number).store(0, std::memory_order_release);
  entry.call = CallOf(collective, rank_);
  std::copy(collective.send_counts.begin(), collective.send_counts.end(), entry.sends);
  std::copy(collective.receive_counts.begin(), collective.receive_counts.end(), entry.receives);
  std::atomic_ref(entry.number).store(number, std::memory_order_release);
}

const CallLog::Entry* CallLog::Find(int rank, uint32_t number) const {
  Entry& entry = page(rank).entries[number % kKept];
  const bool there = std::atomic_ref(entry.number).load(std::memory_order_acquire) == number;
  return there && number != 0 ? &entry : nullptr;
}

std::string CallLog::Disagreement(const uint32_t* numbers, const Members& members) const {
  const auto size = static_cast<int>(segments_.size());
  std::vector<Called> called;
  for (int r = 0; r < size; ++r) {
    const Entry* entry = Find(r, numbers[r]);
    if (entry == nullptr)
      return base::Text(members.List({r}), " called something more than ", kKept, " calls ago");
    const uint8_t tables = entry->call.tables;
    called.push_back(
        {&entry->call, (tables & base::Call::kSends) != 0 ? entry->sends : nullptr,
         (tables & base::Call::kReceives) != 0 ? entry->receives : nullptr});
  }
  return Calls(called.data(), size).Disagreement(members);
}

bool CallLog::IsMessage(int rank, uint32_t number) const {
  const Entry* entry = Find(rank, number);
  return entry != nullptr && base::IsMessage(static_cast<base::CollectiveKind>(entry->call.kind));
}

std::string CallLog::Describe(int rank, uint32_t number) const {
  const Entry* entry = Find(rank, number);
  return entry == nullptr ? base::Text("call ", number) : base::Describe(entry->call);
}

}  // namespace dtrun::ops::cuda

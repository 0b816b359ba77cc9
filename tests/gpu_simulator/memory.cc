#include "tests/gpu_simulator/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace dtrun::gpu_simulator {
namespace {

constexpr uint64_t kPage = 4096;

struct Allocation {
  int device = 0;
  uint64_t bytes = 0;
  void* mapped = nullptr;
  uint64_t mapped_bytes = 0;
};

std::mutex mutex;
std::map<uint64_t, Allocation> allocations;  // by address
std::map<int, uint64_t> taken;

uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace

int NewFile(uint64_t bytes) {
  const int file = memfd_create("simulated GPU memory", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

uint64_t TotalBytes() {
  const char* text = std::getenv("DTRUN_SIMULATED_GPU_BYTES");
  return text == nullptr ? uint64_t{1} << 30 : std::strtoull(text, nullptr, 10);
}

uint64_t TakenBytes(int device) {
  std::lock_guard lock(mutex);
  return taken[device];
}

bool Take(int device, uint64_t bytes) {
  std::lock_guard lock(mutex);
  if (taken[device] + bytes > TotalBytes()) return false;
  taken[device] += bytes;
  return true;
}

void GiveBack(int device, uint64_t bytes) {
  std::lock_guard lock(mutex);
  taken[device] -= bytes;
}

uint64_t Allocate(int device, uint64_t bytes) {
  if (!Take(device, bytes)) return 0;
  const uint64_t room = RoundUp(RoundUp(bytes, 256), kPage);
  Allocation made{.device = device, .bytes = bytes, .mapped_bytes = room + kPage};
  made.mapped = mmap(nullptr, made.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made.mapped == MAP_FAILED || mprotect(made.mapped, room, PROT_READ | PROT_WRITE) != 0) {
    GiveBack(device, bytes);
    return 0;
  }
  const uint64_t base = reinterpret_cast<uint64_t>(made.mapped) + room - RoundUp(bytes, 256);
  std::memset(reinterpret_cast<void*>(base), 0xFF, bytes);
  std::lock_guard lock(mutex);
  allocations[base] = made;
  return base;
}

bool Free(uint64_t base) {
  std::lock_guard lock(mutex);
  const auto found = allocations.find(base);
  if (found == allocations.end()) return false;
  munmap(found->second.mapped, found->second.mapped_bytes);
  taken[found->second.device] -= found->second.bytes;
  allocations.erase(found);
  return true;
}

}  // namespace dtrun::gpu_simulator

#include "tests/gpu_simulator/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace dtrun::gpu_simulator {
namespace {

constexpr uint64_t kPage = 4096;

std::mutex mutex;
std::map<uint64_t, Allocation> allocations;
std::map<int, uint64_t> taken;
uint64_t ids = 0;

void Note(Allocation made) {
  std::lock_guard lock(mutex);
  made.id = ++ids;
  allocations[made.base] = made;
}

uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// Maps `bytes` in front of an inaccessible guard page.
uint64_t MapBeforeGuard(int file, uint64_t bytes, uint64_t& mapped, uint64_t& mapped_bytes) {
  const uint64_t room = RoundUp(RoundUp(bytes, 256), kPage);
  mapped_bytes = room + kPage;
  void* place = mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return 0;
  mapped = reinterpret_cast<uint64_t>(place);
  if (mmap(place, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
    return 0;
  return mapped + room - RoundUp(bytes, 256);
}

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
  Allocation made{.device = device, .bytes = bytes};
  made.file = NewFile(RoundUp(RoundUp(bytes, 256), kPage));
  made.base = made.file < 0 ? 0 : MapBeforeGuard(made.file, bytes, made.mapped, made.mapped_bytes);
  if (made.base == 0) {
    GiveBack(device, bytes);
    return 0;
  }
  std::memset(reinterpret_cast<void*>(made.base), 0xFF, bytes);
  Note(made);
  return made.base;
}

uint64_t MapForeign(int device, const char* path, uint64_t bytes, uint64_t offset) {
  Allocation made{.device = device, .bytes = bytes};
  made.file = open(path, O_RDWR | O_CLOEXEC);
  if (made.file < 0) return 0;
  uint64_t mapped = 0, mapped_bytes = 0;
  const uint64_t end = MapBeforeGuard(made.file, offset + bytes, mapped, mapped_bytes);
  close(made.file);
  made.file = -1;
  if (end == 0) return 0;
  made.mapped = mapped;
  made.mapped_bytes = mapped_bytes;
  made.base = mapped + offset;
  Note(made);
  return made.base;
}

bool Free(uint64_t base) {
  std::lock_guard lock(mutex);
  const auto found = allocations.find(base);
  if (found == allocations.end() || found->second.mapped == 0) return false;
  const Allocation& freed = found->second;
  munmap(reinterpret_cast<void*>(freed.mapped), freed.mapped_bytes);
  if (freed.file >= 0) {
    close(freed.file);
    taken[freed.device] -= freed.bytes;
  }
  allocations.erase(found);
  return true;
}

bool FindAllocation(uint64_t address, Allocation& found) {
  std::lock_guard lock(mutex);
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return false;
  found = std::prev(next)->second;
  return address < found.base + found.bytes;
}

void NoteRange(int device, uint64_t base, uint64_t bytes) {
  Note({.device = device, .base = base, .bytes = bytes});
}

void ForgetRange(uint64_t base) {
  std::lock_guard lock(mutex);
  allocations.erase(base);
}

}  // namespace dtrun::gpu_simulator

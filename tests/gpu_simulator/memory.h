#ifndef DTRUN_TESTS_GPU_SIMULATOR_MEMORY_H_
#define DTRUN_TESTS_GPU_SIMULATOR_MEMORY_H_

#include <cstdint>

// Device memory: pages of this process, each allocation a file without a name (memfd), so that
// other processes can map it. It begins as NaNs, and ends at a page that nobody may touch.

namespace dtrun::gpu_simulator {

struct Allocation {
  int device = 0;
  uint64_t base = 0, bytes = 0;  // what was asked for
  uint64_t mapped = 0, mapped_bytes = 0;
  int file = -1;
  uint64_t id = 0;  // that no other one of this process has had
};

constexpr uint64_t kGranularity = 2 << 20;

/// 0: there is no room. `file` < 0: a new one.
uint64_t Allocate(int device, uint64_t bytes);
/// Of another process, as FindFile there has said.
uint64_t MapForeign(int device, const char* path, uint64_t bytes, uint64_t offset);
bool Free(uint64_t base);
/// The allocation that holds an address; false: none does.
bool FindAllocation(uint64_t address, Allocation& found);
/// Address ranges that are reserved and mapped by hand.
void NoteRange(int device, uint64_t base, uint64_t bytes);
void ForgetRange(uint64_t base);

/// Bytes of a simulated GPU: DTRUN_SIMULATED_GPU_BYTES, 1 GiB without.
uint64_t TotalBytes();
uint64_t TakenBytes(int device);
/// False: they do not fit.
bool Take(int device, uint64_t bytes);
void GiveBack(int device, uint64_t bytes);

int NewFile(uint64_t bytes);

}  // namespace dtrun::gpu_simulator

#endif

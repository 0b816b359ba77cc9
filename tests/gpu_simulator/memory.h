#ifndef DTRUN_TESTS_GPU_SIMULATOR_MEMORY_H_
#define DTRUN_TESTS_GPU_SIMULATOR_MEMORY_H_

#include <cstdint>

// Device memory consists of pages of this process. Each allocation is an unnamed file (memfd), so
// that other processes can map it. New memory is filled with 0xFF bytes, which are NaNs. An
// inaccessible guard page follows each allocation.

namespace dtrun::gpu_simulator {

struct Allocation {
  int device = 0;
  uint64_t base = 0, bytes = 0;  // the requested range
  uint64_t mapped = 0, mapped_bytes = 0;
  int file = -1;
  uint64_t id = 0;  // unique over all allocations of this process
};

constexpr uint64_t kGranularity = 2 << 20;

/// Returns the address of a new allocation, or 0 if the memory does not fit.
uint64_t Allocate(int device, uint64_t bytes);
/// Maps an allocation of another process: the file at `path`, from `offset`. Returns 0 on failure.
uint64_t MapForeign(int device, const char* path, uint64_t bytes, uint64_t offset);
bool Free(uint64_t base);
/// Finds the allocation that holds `address`. Returns false if there is none.
bool FindAllocation(uint64_t address, Allocation& found);
/// Note and forget address ranges that the caller maps itself.
void NoteRange(int device, uint64_t base, uint64_t bytes);
void ForgetRange(uint64_t base);

/// The memory of a simulated GPU: DTRUN_SIMULATED_GPU_BYTES, 1 GiB by default.
uint64_t TotalBytes();
uint64_t TakenBytes(int device);
/// Returns false if the bytes do not fit.
bool Take(int device, uint64_t bytes);
void GiveBack(int device, uint64_t bytes);

int NewFile(uint64_t bytes);

}  // namespace dtrun::gpu_simulator

#endif

#include "tests/gpu_simulator/fiber.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace dtrun::gpu_simulator {
namespace {

constexpr size_t kStackBytes = 128 << 10;

}  // namespace

Fiber::Fiber()
    : stack_(mmap(
          nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
          -1, 0)) {
  if (stack_ == MAP_FAILED) std::abort();
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

#if DTRUN_FIBERS_SWITCH_STACKS

// Pushes the callee-saved registers on the current stack and stores the stack pointer at `from`.
// Then continues on the stack `to`, after the call of dtrun_switch_stacks that left `to`.
extern "C" void dtrun_switch_stacks(void** from, void* to);
asm(R"(
  .text
  .hidden dtrun_switch_stacks
  .globl dtrun_switch_stacks
  .type dtrun_switch_stacks, @function
dtrun_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size dtrun_switch_stacks, .-dtrun_switch_stacks
)");

// Prepares the stack as if `body` had called dtrun_switch_stacks: six registers, the address of
// `body` as the return address, and a null return address of `body`, which never returns.
void Fiber::Start(void (*body)()) {
  constexpr size_t kRegisters = 6;
  auto* const top = reinterpret_cast<uintptr_t*>(static_cast<char*>(stack_) + kStackBytes);
  uintptr_t* const first = top - 2 - kRegisters;
  for (size_t i = 0; i < kRegisters; ++i) first[i] = 0;
  first[kRegisters] = reinterpret_cast<uintptr_t>(body);
  first[kRegisters + 1] = 0;
  here_ = first;
}

void Fiber::Resume() { dtrun_switch_stacks(&resumer_, here_); }
void Fiber::Leave() { dtrun_switch_stacks(&here_, resumer_); }

#else

void Fiber::Start(void (*body)()) {
  getcontext(&here_);
  here_.uc_stack.ss_sp = stack_;
  here_.uc_stack.ss_size = kStackBytes;
  here_.uc_link = nullptr;
  makecontext(&here_, body, 0);
}

void Fiber::Resume() { swapcontext(&resumer_, &here_); }
void Fiber::Leave() { swapcontext(&here_, &resumer_); }

#endif

}  // namespace dtrun::gpu_simulator

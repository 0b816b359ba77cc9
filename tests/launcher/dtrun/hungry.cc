// Allocates and fills argv[1] MiB of memory.

#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  constexpr size_t kMebibyte = 1 << 20;
  std::vector<char*> taken;
  for (int i = 0; i < (argc > 1 ? std::atoi(argv[1]) : 0); ++i) {
    taken.push_back(new char[kMebibyte]);
    std::memset(taken.back(), i + 1, kMebibyte);
  }
  return taken.empty() ? 2 : 0;
}

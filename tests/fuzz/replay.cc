// The place of libFuzzer where a build has none: runs the target once for each file that is named.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("found no input; expected files\n", stderr);
    return 2;
  }
  for (int i = 1; i < argc; ++i) {
    std::printf("%s\n", argv[i]);
    std::fflush(stdout);  // the last one named is the one that fails
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s cannot be read\n", argv[i]);
      return 2;
    }
    const std::string input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::printf("%d passed, 0 failed, 0 skipped\n", argc - 1);
}

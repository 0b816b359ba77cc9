#!/usr/bin/env bash
# A trainer with LibTorch, built by CMake as docs/guides/embedding.md shows it.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
source scripts/lib/readme.sh
install_and_move

limit_s=300

trains() {
  cp -L "$tree/examples/torch_elastic.cc" trainer.cc
  readme_blocks "$tree/docs/guides/embedding.md" cmake | sed '1,/^\f$/d; /^\f$/d' >CMakeLists.txt
  run cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix"
  expect_status 0
  expect_output "Found Torch"
  run cmake --build build
  expect_status 0
  run "$prefix/bin/dtrun" --tag none -np 2 build/trainer 50
  expect_status 0
  expect_output "loss after 50 steps"
}
if [[ -e /usr/lib/$(uname -m)-linux-gnu/libtorch.so ]]; then
  story "a trainer with Debian's LibTorch is found, linked and run with CMake" trains
else
  skip_story "a trainer with Debian's LibTorch is found, linked and run with CMake" "libtorch-dev is not installed"
fi
end_of_stories

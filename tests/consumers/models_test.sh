#!/usr/bin/env bash
# Trainers outside of this repository that use the training library of an installed dtrun that was moved.
source tests/scripts/stories.sh
source tests/consumers/installed.sh

cxx_flags=(-std=c++20 -Wall -Wextra -Werror)
install_and_move

models_flags() {
  read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs dtrun-models)
}

with_cmake() {
  cp -L "$tree/tests/consumers/models.cc" network.cc
  cp -L "$tree"/tests/consumers/cmake_models/* .
  # The option below makes the compiler check dtrun's headers, which are system headers otherwise.
  run env CXXFLAGS="-Wall -Wextra -Werror" \
    cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_NO_SYSTEM_FROM_IMPORTED=ON
  expect_status 0
  limit_s=100 run cmake --build build --verbose
  expect_status 0
  expect_output "-I$prefix/include"
  expect_network_learns build/network
}
story "find_package(dtrun) builds a trainer with the training library" with_cmake

with_pkg_config() {
  models_flags
  c++ "${cxx_flags[@]}" "$tree/tests/consumers/models.cc" "${flags[@]}" -o network
  expect_network_learns ./network
}
story "pkg-config builds a trainer with the training library" with_pkg_config

# With hidden symbols, the program has its own copy of the error type, apart from the library's copy.
hidden_symbols() {
  models_flags
  c++ "${cxx_flags[@]}" -fvisibility=hidden "$tree/tests/consumers/models.cc" "${flags[@]}" -o network
  expect_network_learns ./network
  nm -DC "$prefix/lib/libdtrun_models.so" >shown # a file, because grep -q would end nm early
  grep -q ' V typeinfo for dtrun::Error@@' shown ||
    unmet "the type of its errors in what the library shows"
}
story "errors of the library are caught in a program that hides its own symbols" hidden_symbols

on_a_gpu() {
  local cpu line
  if [[ ! -e $tree/tests/gpu_simulator/libcuda.so.1 ]]; then
    skip_story "a trainer with the training library trains a residual network on a GPU" "no CUDA toolkit was found"
    return
  fi
  models_flags
  while read -r line; do
    grep -qF "$line" "$tree/tests/consumers/gpu_model.cc" || unmet "the line of layers.md in gpu_model.cc: $line"
  done < <(awk '/^## On a GPU/ { here = 1 } here && /^```$/ { exit } code { print } here && /^```cpp/ { code = 1 }' \
    "$tree/docs/guides/layers.md")
  c++ "${cxx_flags[@]}" "$tree/tests/consumers/gpu_model.cc" "${flags[@]}" -o gpu_model
  run ./gpu_model
  expect_status 0
  cpu=$output
  run env LD_LIBRARY_PATH="$tree/tests/gpu_simulator" ./gpu_model one_device:cuda:0
  expect_status 0
  expect_equal "$output" "$cpu"
}
story "a trainer with the training library trains a residual network on a GPU" on_a_gpu

only_own_symbols() {
  local others
  others=$(nm -DC --defined-only "$prefix/lib/libdtrun_models.so" | sed 's/^[0-9a-f]* . //' |
    grep -vE 'dtrun::|^DTRUN_MODELS_|^std::' || true) # std: code of the standard library's headers
  expect_equal "$others" ""
  readelf -d "$prefix/lib/libdtrun_models.so" >dynamic
  grep -qF 'Library soname: [libdtrun_models.so.0.1]' dynamic || unmet "the versioned soname"
  grep -qF 'Shared library: [libdtrun.so.0]' dynamic || unmet "that it loads libdtrun.so.0"
}
story "the library exports only symbols of dtrun" only_own_symbols

soname_is_version() {
  local version major minor patch
  version=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --modversion dtrun-models)
  IFS=. read -r major minor patch <<<"$version"
  [[ -e $prefix/lib/libdtrun_models.so.$major.$minor ]] || unmet "libdtrun_models.so.$major.$minor of version $version.$patch"
}
story "the soname has the major and minor version" soname_is_version

warnings() {
  models_headers >headers
  all_together "${models_warnings[@]}"
}
story "the headers of the training library compile with warnings as errors" warnings

full_paths() {
  ! grep -rE '# *include *"' "$prefix/include/dtrun/models" || unmet "<dtrun/models/...>"
}
story "headers of the training library include each other by their full paths" full_paths

# Users of the library need oneDNN's headers only to build their own layers, and no other library's headers.
other_headers() {
  expect_equal "$(cd "$prefix/include/dtrun/models" && grep -rlE '# *include *<(nlohmann|CLI|zlib|openssl|dnnl|oneapi)' . | sort)" \
    ./layers/builder.h
}
story "only builder.h of the training library needs oneDNN's headers and no header needs other libraries" other_headers

end_of_stories

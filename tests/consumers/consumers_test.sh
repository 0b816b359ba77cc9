#!/usr/bin/env bash
# Trainers outside of this repository, built with CMake and with pkg-config against an installed dtrun that was moved.
source tests/scripts/stories.sh
source tests/consumers/installed.sh

cxx_flags=(-std=c++17 -Wall -Wextra -Werror -Wconversion)
c_flags=(-std=c99 -pedantic -Wall -Wextra -Werror)
install_and_move

# For the stories that only link.
trainer_object=$TEST_TMPDIR/trainer.o
c++ "${cxx_flags[@]}" -I"$prefix/include" -c "$tree/tests/consumers/consumer.cc" -o "$trainer_object"

with_cmake() {
  trainer_sources
  cp -L "$tree"/tests/consumers/cmake/* .
  # The option below makes the compiler check dtrun's headers, which are system headers otherwise.
  run env CXXFLAGS="${cxx_flags[*]}" CFLAGS="${c_flags[*]}" \
    cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_NO_SYSTEM_FROM_IMPORTED=ON
  expect_status 0
  limit_s=60 run cmake --build build --verbose
  expect_status 0
  expect_output "-I$prefix/include"
  expect_trainer_runs build/trainer
  expect_c_trainer_runs build/trainer_c
}
story "find_package(dtrun) builds trainers in C++17 and in C99" with_cmake

# shellcheck disable=SC2016 # CMake's variables
ask_cmake_for() { # ask_cmake_for VERSION: `output` has "found" or the reason
  printf '%s\n' 'cmake_minimum_required(VERSION 3.19)' 'project(ask NONE)' "find_package(dtrun $1 REQUIRED)" \
    'message(STATUS "found ${dtrun_VERSION}")' >CMakeLists.txt
  run cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix"
}

cmake_versions() {
  local version major minor patch asked
  version=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --modversion dtrun)
  IFS=. read -r major minor patch <<<"$version"
  for asked in "" "$major" "$major.$minor" "$version" "$version EXACT" "0.0...$version" "0.0...<$((major + 1))"; do
    ask_cmake_for "$asked"
    expect_output "found $version"
  done
  for asked in "$major.$((minor + 1))" "$major.$minor.$((patch + 1))" "$((major + 1))" "0.0.1" "0.0...<$version"; do
    ask_cmake_for "$asked"
    expect_output "version: $version"
    expect_no_output "found $version"
  done
}
story "find_package accepts a version that fits and refuses other versions" cmake_versions

incomplete() {
  cp -a "$prefix" incomplete
  rm incomplete/lib/libdtrun.so.0
  prefix=$PWD/incomplete ask_cmake_for ""
  output=$(tr -s ' \n' ' ' <<<"$output") # CMake breaks lines
  expect_output "The installed dtrun is incomplete: $PWD/incomplete/lib/libdtrun.so.0 is missing."
}
story "find_package names the missing file of an incomplete tree" incomplete

# As scripts/install --core leaves it, and with the library alone missing.
without_training_library() {
  local version
  version=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --modversion dtrun)
  cp -a "$prefix" core
  rm core/lib/libdtrun_models.so*
  prefix=$PWD/core ask_cmake_for ""
  output=$(tr -s ' \n' ' ' <<<"$output")
  expect_output "The installed dtrun is incomplete: $PWD/core/lib/libdtrun_models.so"
  rm -r core/include/dtrun/models
  prefix=$PWD/core ask_cmake_for ""
  expect_output "found $version"
}
story "find_package finds a dtrun without the training library" without_training_library

# Checks that the page has each option of the help and fits 80 columns.
manual_page() { # manual_page PROGRAM HELP-OPTION
  local option
  run env MANWIDTH=80 LC_ALL=C.UTF-8 man --warnings --local-file "$prefix/share/man/man1/$1.1"
  expect_status 0
  expect_no_output "<standard input>:" # the prefix of groff's warnings
  expect_output "SYNOPSIS"
  expect_output "EXIT STATUS"
  ! grep -nE '^.{81}' <<<"$output" || unmet "lines of at most 80 columns"
  while read -r option; do
    grep -qE -- "(^| )$option( |,|$)" <<<"$output" || unmet "$option on the page"
  done < <("$prefix/bin/$1" "$2" | grep -oE '^  -[^ ]+' | tr -d ' ' | tr ',' '\n')
}

manual_pages() {
  manual_page dtrun --help-all
  manual_page cnn_fmnist --help
}
story "man shows the pages of dtrun and cnn_fmnist with every option" manual_pages

with_pkg_config() {
  trainer_sources
  pkg_config_flags
  c++ "${cxx_flags[@]}" trainer.cc "${flags[@]}" -o trainer
  cc "${c_flags[@]}" trainer.c "${flags[@]}" -o trainer_c
  expect_trainer_runs ./trainer
  expect_c_trainer_runs ./trainer_c
}
story "pkg-config builds trainers in C++17 and in C99" with_pkg_config

stricter() {
  trainer_headers >headers
  all_together "${trainer_warnings[@]}"
}
story "the headers compile with more warnings as errors" stricter

too_old() {
  trainer_sources
  pkg_config_flags
  run c++ -std=c++14 -fsyntax-only trainer.cc "${flags[@]:0:1}"
  output=$(grep -m 1 error: <<<"$output")
  expect_output "dtrun's C++ headers need C++17: compile with -std=c++17 or later"
}
story "under an older standard the compiler's first error asks for C++17" too_old

old_strings() {
  trainer_sources
  pkg_config_flags
  c++ "${cxx_flags[@]}" -D_GLIBCXX_USE_CXX11_ABI=0 trainer.cc "${flags[@]}" -o trainer
  nm -C --undefined-only trainer >symbols
  grep -qF 'std::runtime_error::runtime_error(std::string const&)' symbols ||
    unmet "a program that uses the standard library's old strings"
  expect_trainer_runs ./trainer
}
story "a trainer with the standard library's old ABI works with the same libdtrun" old_strings

moved_together() {
  # shellcheck disable=SC2016 # the loader's variable
  local beside='-Wl,-rpath,$ORIGIN/../lib'
  cp -a "$prefix" together
  c++ "$trainer_object" -Ltogether/lib -ldtrun "$beside" -o together/bin/trainer
  mv together elsewhere
  prefix=$PWD/elsewhere expect_trainer_runs elsewhere/bin/trainer
}
story "a trainer installed beside dtrun moves with it" moved_together

# As in the packages of scripts/debian, whose programs name no folder of libraries.
debian_folders() {
  local lib=$PWD/usr/lib/x86_64-linux-gnu
  cp -a "$prefix" usr
  mkdir -p "$lib/dtrun"
  mv usr/lib/libdtrun_mpi.so usr/lib/libdtrun_mpich.so usr/lib/libdtrun_ucx.so "$lib/dtrun/"
  mv usr/lib/libdtrun* "$lib/"
  run usr/bin/dtrun --check-build
  expect_output "[x] libdtrun.so: $lib/libdtrun.so.0"
  expect_output "[x] libdtrun_mpi.so: $lib/dtrun/libdtrun_mpi.so"
  expect_output "[x] libdtrun_mpich.so: $lib/dtrun/libdtrun_mpich.so"
  expect_output "[x] libdtrun_ucx.so: $lib/dtrun/libdtrun_ucx.so"
  c++ "$trainer_object" -L"$lib" -ldtrun -o trainer
  run env LD_LIBRARY_PATH="$lib" usr/bin/dtrun --tag none -np 2 ./trainer
  expect_equal "$output" "2: shm"
}
story "dtrun and its library find each other in the folders of Debian's packages" debian_folders

end_of_stories

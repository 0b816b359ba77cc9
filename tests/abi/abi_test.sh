#!/usr/bin/env bash
# What the installed libraries show and need, and that programs built against an earlier libdtrun.so.0 still find the same.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
install_and_move

abi=$tree/tests/abi
header=$prefix/include/dtrun/c.h

abi_changed="the C ABI that tests/abi holds. What was added gets its line there, as it stands above. What was removed or
changed breaks programs that exist: bring it back, or give the library another soname (runtime/BUILD.bazel)."

# `actual` is the very text of the list; otherwise says which lines differ and what to do.
expect_list() { # expect_list LIST ACTUAL
  diff --unified=0 --label "$1" --label "this build" "$abi/$1" "$2" || unmet "$abi_changed"
}

shown_by() { LC_ALL=C nm -D --defined-only "$prefix/lib/$1" | cut -d' ' -f2-; } # "T dtrun_init@@DTRUN_0"
needed_by() { readelf -d "$prefix/lib/$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort; }

only_our_functions() {
  local foreign
  foreign=$(shown_by libdtrun.so.0 | grep -vxE 'A DTRUN_0|T dtrun_[a-z0-9_]+@@DTRUN_0' || true)
  expect_equal "$foreign" ""
  expect_equal "$(shown_by libdtrun_mpi.so)" "T dtrun_mpi_module"
  expect_equal "$(shown_by libdtrun_mpich.so)" "T dtrun_mpi_module"
  expect_equal "$(shown_by libdtrun_ucx.so)" "T dtrun_ucx_module"
}
story "the libraries show functions of dtrun and nothing of what they are made of" only_our_functions

# "dtrun_version(void) -> const char*", for all that the headers declare.
declared_functions() {
  cpp -P -I"$prefix/include" -D'__attribute__(x)=DECLARES' "$header" | tr '\n' ' ' | sed 's/;/;\n/g' |
    sed -nE 's/.*DECLARES (.*[ *])(dtrun_[a-z0-9_]+) ?(\(.*\));$/\2\3 -> \1/p' | sed -E 's/ +/ /g; s/\( /(/g; s/ $//' | LC_ALL=C sort
}

functions() {
  declared_functions >declared
  expect_list functions.txt declared
}
story "the headers declare the functions of the list" functions

shown_functions() {
  shown_by libdtrun.so.0 | sed -n 's/^T \(.*\)@@DTRUN_0$/\1/p' | LC_ALL=C sort >shown
  declared_functions | cut -d'(' -f1 | diff --label "the headers declare" --label "libdtrun.so.0 has" - shown ||
    unmet "a function for every declaration, and no other"
}
story "libdtrun.so.0 has what the headers declare" shown_functions

layout() {
  cc -std=c99 -pedantic -Wall -Wextra -Werror -I"$prefix/include" "$abi/layout.c" -o layout
  ./layout >now
  expect_list layout.txt now
}
story "structs and constants are those of the list" layout

layout_is_complete() {
  local name
  for name in $(cpp -P -I"$prefix/include" "$header" | grep -oE '\<(DTRUN_[A-Z0-9_]+ *=|struct dtrun_[a-z_]+ *\{)' | sed -E 's/^struct //; s/ *[={]$//'); do
    grep -qE "^(sizeof )?$name " "$abi/layout.txt" || unmet "$name in layout.c and layout.txt, $abi_changed"
  done
}
story "every struct and constant of c.h is on the list" layout_is_complete

soname() {
  expect_equal "$(readelf -d "$prefix/lib/libdtrun.so.0" | grep -o 'soname: .*')" "soname: [libdtrun.so.0]"
  expect_equal "$(readlink "$prefix/lib/libdtrun.so")" libdtrun.so.0
  # libdtrun_models finds libdtrun beside itself.
  readelf -d "$prefix"/lib/*.so* | grep -E '(RPATH|RUNPATH)' | grep -v '\[.ORIGIN\]' &&
    unmet "libraries that look in no folder of the build"
  expect_equal "$(needed_by libdtrun.so.0)" $'libc.so.6\nlibgcc_s.so.1\nlibm.so.6\nlibstdc++.so.6'
  expect_equal "$(needed_by libdtrun_mpi.so | grep -v '^libmpi.so')" "$(needed_by libdtrun.so.0)"
  expect_equal "$(needed_by libdtrun_mpich.so)" "$(needed_by libdtrun.so.0)"
  expect_equal "$(needed_by libdtrun_ucx.so | grep -v '^libuc[ps].so')" "$(needed_by libdtrun.so.0)"
}
story "libdtrun.so.0 needs the compiler's own libraries; its modules need Open MPI or UCX besides" soname

end_of_stories

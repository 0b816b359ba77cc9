#!/usr/bin/env bash
# check_layers on a small tree that obeys every arrow, and on the same tree with each arrow broken.
source tests/scripts/stories.sh

# A workspace with empty repositories for the system libraries. Bazel's own tools need the repositories of the real tree.
workspace() {
  local library real
  # All stories use the same folder, so that one Bazel server is enough.
  rm -rf "$TEST_TMPDIR/tree" && mkdir "$TEST_TMPDIR/tree" && cd "$TEST_TMPDIR/tree"
  real=$(dirname "$(dirname "$(readlink -f "$tree/scripts/check_layers")")")
  fresh_clone
  cp -r "$real/scripts/bazel" scripts/
  exec 3>WORKSPACE
  for library in rules_cc rules_java remote_coverage_tools; do
    echo "local_repository(name = '$library', path = 'scripts/bazel/$library')" >&3
  done
  mkdir libraries
  for library in open_mpi ucx cuda onednn libtorch cli11 catch2; do
    echo "new_local_repository(name = '$library', path = 'libraries', build_file_content =" >&3
    echo "    'cc_library(name = \"$library\", visibility = [\"//visibility:public\"])')" >&3
  done
  exec 3>&-
}

library() { # library PACKAGE:NAME DEPENDENCY...
  local package=${1%:*} name=${1#*:} dependencies=""
  shift
  if (($# > 0)); then dependencies=$(printf "'%s', " "$@"); fi
  mkdir -p "$package"
  echo "cc_library(name = '$name', deps = [$dependencies])" >>"$package/BUILD.bazel"
}

obeying_tree() {
  workspace
  library include/dtrun:types
  library base:base //include/dtrun:types
  library base:clock
  library ops:collectives //base:clock
  library ops/reduce:reduce
  library ops/collective:collective //ops/reduce:reduce
  library runtime/job:job //ops/collective:collective
  library runtime/c_api:c_api //runtime/job:job
  library launcher/support:support //base:base
  library launcher/hosts:hosts //launcher/support:support
  library launcher/engines:engines //launcher/hosts:hosts
  library launcher/job:job //launcher/engines:engines
  library ops/bootstrap:bootstrap
  library ops/mpi:module //ops/bootstrap:bootstrap @open_mpi
  library ops/ucx:module //ops/bootstrap:bootstrap @ucx
  library runtime:libdtrun.so.0 //ops:collectives //base:base
  library runtime:libdtrun_mpi.so //ops/mpi:module
  library runtime:libdtrun_ucx.so //ops/ucx:module
  library runtime:dtrun :libdtrun.so.0 :libdtrun_mpi.so :libdtrun_ucx.so
  library launcher:dtrun //base:base @cli11
  library models:cnn_fmnist //runtime:dtrun @onednn
  library examples:sgd //runtime:dtrun
  library tests:conformance //ops/mpi:module @open_mpi @catch2
  printf '%s\n' '#ifndef A_H_' '#include "base/text.h"' '#if defined(__x86_64__)  // if CUDA' '#include <dtrun/types.h>' >ops/a.h
  printf '%s\n' '#include <mpi.h>' '#include "ops/a.h"' >ops/mpi/a.cc
  printf '%s\n' '#include <dtrun/dtrun.h>' '// getenv("HOME") is read in base/' >models/a.cc
  echo 'x = getenv("HOME");' >base/a.cc
}

# A separate Bazel server: the server that runs this test is busy.
own_bazel() {
  mkdir "$TEST_TMPDIR/path" 2>/dev/null || return 0
  printf '#!/bin/bash\nunset TEST_TMPDIR\nexec %s --output_user_root="%s" --max_idle_secs=15 "$@"\n' "$(command -v bazel)" "$TEST_TMPDIR/bazel" \
    >"$TEST_TMPDIR/path/bazel"
  chmod +x "$TEST_TMPDIR/path/bazel"
}

check_layers() {
  PATH=$TEST_TMPDIR/path:$PATH limit_s=120 run scripts/check_layers
}

obeys() {
  obeying_tree
  check_layers
  expect_status 0
  expect_no_output FAIL
  expect_no_output "no ops/"
  expect_output "ok    //runtime:libdtrun.so.0 does not reach @open_mpi"
  expect_output "0 failed, 0 skipped"
}

broken_graph() {
  obeying_tree
  library include/dtrun:c //base:base
  library base:wrong @open_mpi
  library ops:wrong //runtime:dtrun
  library runtime:wrong //models:cnn_fmnist
  sed -i "s|'//base:base'|&, '//ops/mpi:module'|" runtime/BUILD.bazel
  library launcher:wrong //ops:collectives
  library launcher:sly //base:clock
  library models:wrong //ops:collectives
  library bench:fine @open_mpi
  check_layers
  expect_status 1
  expect_output "FAIL  include uses more than itself"
  expect_output $'FAIL  base reaches @open_mpi\n        //base:wrong\n        @open_mpi//:open_mpi'
  expect_output $'FAIL  ops reaches runtime\n        //ops:wrong\n        //runtime:dtrun'
  expect_output $'FAIL  runtime reaches models\n        //runtime:wrong\n        //models:cnn_fmnist'
  expect_output $'FAIL  //runtime:libdtrun.so.0 reaches @open_mpi\n        //runtime:libdtrun.so.0\n        //ops/mpi:module\n        @open_mpi//'
  expect_output $'FAIL  launcher reaches ops\n        //launcher:wrong\n        //ops:collectives'
  expect_output "//launcher:sly uses //base:clock"
  expect_output "//models:wrong uses //ops:collectives"
  expect_output $'FAIL  @open_mpi is used outside ops/mpi examples bench tests\n        //base:wrong'
  expect_no_output "//bench:fine"
}

broken_parts() {
  obeying_tree
  library ops/reduce:wrong //ops/collective:collective
  library runtime/job:wrong //runtime/c_api:c_api
  library launcher/support:between //launcher/job:job
  library launcher/hosts:wrong //launcher/support:between
  library launcher/engines:wrong //launcher/hosts:wrong
  library ops/fresh:fresh
  echo '#include "launcher/job/job_run.h"' >launcher/engines/a.cc
  check_layers
  expect_status 1
  expect_output $'FAIL  ops/reduce uses of ops/ more than itself\n        //ops/reduce:wrong uses //ops/collective:collective'
  expect_output $'FAIL  runtime/job uses of runtime/ more than timeline parameter_server\n        //runtime/job:wrong uses //runtime/c_api:c_api'
  expect_output $'FAIL  launcher/engines uses of launcher/ more than support hosts protocol\n        launcher/engines/a.cc includes launcher/job/job_run.h'
  expect_output $'FAIL  launcher/engines reaches launcher/job\n        //launcher/engines:wrong\n        //launcher/hosts:wrong\n        //launcher/support:between\n        //launcher/job:job'
  expect_output "ok    launcher/hosts uses of launcher/ support"
  expect_output $'FAIL  ops/fresh is a part without a row\n'
}

engines_together() {
  obeying_tree
  printf '%s\n' 'const LaunchEngine& OneEngine();  // one.cc' 'const LaunchEngine& OtherEngine();  // other.cc' >launcher/engines/launch_engine.cc
  echo 'const LaunchEngine& OneEngine() { return one; }' >launcher/engines/one.cc
  echo 'const LaunchEngine& OtherEngine() { return other; }' >launcher/engines/other.cc
  check_layers
  expect_status 0
  expect_output "ok    launch engines know nothing of each other"
  echo '#include "launcher/engines/one.h"' >>launcher/engines/other.cc
  echo 'bool is_one = &engine == &OneEngine();' >launcher/job/a.cc
  check_layers
  expect_status 1
  expect_output $'FAIL  launch engines know of each other\n        launcher/job/a.cc names OneEngine\n        launcher/engines/other.cc includes one.h'
}

# A row that names a part below the row itself is an error in the table.
rows_out_of_order() {
  obeying_tree
  sed -i -E 's/^( *)(engine +collective bootstrap)$/\1\2 communicator/' scripts/check_layers
  check_layers
  expect_status 1
  expect_output $'FAIL  ops/engine uses of ops/ more than collective bootstrap communicator\n        the row of communicator is not above that of engine'
  expect_output "1 failed, 0 skipped"
}

broken_sources() {
  obeying_tree
  echo '#include "ops/communicator/communicator_base.h"' >base/b.h
  echo '#include "ops/communicator/communicator_base.h"' >models/b.cc
  echo '#include "base/process.h"' >launcher/b.cc
  echo '#include <mpi.h>' >runtime/b.cc
  echo '#include <cuda_runtime.h>' >base/c.cc
  echo 'const char* home = std::getenv("HOME");' >runtime/c.cc
  printf '%s\n' '#ifdef HAVE_CUDA' >ops/c.cc
  printf '%s\n' '#if defined(__x86_64__) && USE_FAST' >ops/d.cc
  printf '%s\n' '#if __has_include(<nccl.h>)' >ops/e.cc
  echo 'int code = std::system("ls");' >launcher/c.cc
  echo 'FILE* file = popen(line, "r"); // as in system(3)' >ops/f.cc
  echo 'const char* argv[] = {"/bin/sh", "-c", line, nullptr};' >runtime/d.cc
  echo '#include <dtrun/detail/device.h>' >tests/a.cc
  mkdir include/dtrun/detail
  echo '#include <dtrun/detail/device.h>' >include/dtrun/detail/strategy.h
  check_layers
  expect_status 1
  for evidence in "base/b.h includes ops/communicator/communicator_base.h" "models/b.cc includes ops/communicator/communicator_base.h" \
    "launcher/b.cc includes base/process.h" "runtime/b.cc: #include <mpi.h>" "base/c.cc: #include <cuda_runtime.h>" \
    "runtime/c.cc: const char* home" "ops/c.cc: #ifdef HAVE_CUDA" "ops/d.cc: #if" "ops/e.cc: #if" "launcher/c.cc: int code" "ops/f.cc: FILE*" \
    "runtime/d.cc: const char* argv" "tests/a.cc: #include <dtrun/detail/device.h>"; do
    expect_output "$evidence"
  done
  expect_no_output "include/dtrun/detail/strategy.h: "
  expect_output "9 failed, 0 skipped"
}

absent_folder() {
  obeying_tree
  rm -r examples
  check_layers
  expect_status 0
  expect_output "(no examples/ in this tree)"
}

no_arguments() {
  fresh_clone
  run scripts/check_layers --fast
  expect_status 2
  expect_equal "$output" "check_layers: unknown argument '--fast'; expected none"
}

own_bazel
story "an argument is refused" no_arguments
story "a tree that obeys every arrow passes" obeys
story "a dependency against an arrow fails with the path" broken_graph
story "a part that uses a higher part or has no row fails with the edge" broken_parts
story "an engine that another file names or another engine includes fails" engines_together
story "a table out of order fails" rows_out_of_order
story "an include, a getenv or an #if in the wrong folder fails with the file" broken_sources
story "a missing folder is reported and not checked" absent_folder
(cd "$TEST_TMPDIR/tree/clone" && "$TEST_TMPDIR/path/bazel" shutdown)
end_of_stories

#!/usr/bin/env bash
# The numbered steps of scripts: their output, their end after an interrupt, and the installation of files.
source tests/scripts/stories.sh

# Writes a script of two steps with the given commands.
two_steps() { # two_steps FIRST SECOND
  fresh_clone
  cat >scripts/two_steps <<SH
#!/usr/bin/env bash
set -euo pipefail
cd "\$(dirname "\$0")/.."
source scripts/lib/common.sh
source scripts/lib/steps.sh
first() { $1; }
second() { $2; }
begin_steps two_steps 2
step "first" first first
live_step "second" second second
SH
  chmod +x scripts/two_steps
}

good_steps() {
  two_steps "echo noise" "echo result"
  run scripts/two_steps
  expect_status 0
  expect_output "[1/2] first ... done (0 s)"
  expect_output $'[2/2] second\nresult\n'
  expect_no_output "noise"
  expect_equal "$(cat build/log/two_steps/1-first.log)" noise
}
story "a step's output goes to its log, and a live step's output to the screen" good_steps

bad_command() {
  two_steps "false; echo must not come here" "true"
  run scripts/two_steps
  expect_status 1
  expect_output "[1/2] first ... FAILED"
  expect_no_output "must not come here"
  expect_no_output "[2/2]"
}
story "a step and its script end at the first failing command" bad_command

interrupted_by() { # interrupted_by SIGNAL
  two_steps "sleep 1000 & sleep 1001 & jobs -p >$PWD/pids; touch $PWD/started; wait" "true"
  scripts/two_steps >out 2>&1 </dev/null &
  local script=$!
  until [[ -e ../started ]]; do sleep 0.1; done
  kill "-$1" $script
  status=0
  wait $script || status=$?
  output=$(cat out)
  echo "$output"
  expect_equal "$(wc -l <../pids)" 2
  while read -r process; do
    [[ ! -e /proc/$process ]] || unmet "that process $process has ended"
  done <../pids
  expect_output "interrupted in step 1 of 2"
}

terminated() {
  interrupted_by TERM
  expect_status 143
}
story "an interrupt ends all processes that the step started" terminated

# A built tree for scripts/install: programs, libraries and headers, without Bazel.
built_tree() {
  machine && fresh_clone
  tool dpkg-query <<<"printf 'install ok installed'"
  tool apt-get <<<'exit 1'
  tool bazel <<<'exit 0'
  mkdir -p bazel-bin/{runtime,launcher,models/library/headers/layers,bench,docs/man,docs/completion} include/dtrun/detail base
  cp /bin/true bazel-bin/launcher/dtrun
  cp /bin/true bazel-bin/launcher/dtrun_agent
  cp /bin/true bazel-bin/launcher/dtrun_daemon
  cp /bin/true bazel-bin/launcher/dtrun_listen.so
  cp /bin/true bazel-bin/launcher/dtrun_local
  echo 'complete -F _dtrun dtrun' >bazel-bin/launcher/dtrun.bash
  echo '.TH DTRUN 1' >bazel-bin/docs/man/dtrun.1
  echo '.TH CNN_FMNIST 1' >bazel-bin/docs/man/cnn_fmnist.1
  touch bazel-bin/docs/completion/{cnn_fmnist,predict,synthetic_benchmark}.bash
  cp /bin/true bazel-bin/launcher/dtrun_probe
  cp /bin/true bazel-bin/launcher/dtrun_rank
  cp /bin/true bazel-bin/launcher/dtrun_reach
  cp /bin/true bazel-bin/models/cnn_fmnist
  cp /bin/true bazel-bin/models/synthetic_benchmark
  cp /bin/true bazel-bin/models/predict
  cp /bin/true bazel-bin/bench/all_reduce_perf
  cp /bin/true bazel-bin/bench/gradient_perf
  cp /bin/true bazel-bin/bench/model_perf
  cp /bin/true bazel-bin/bench/named_perf
  cp /bin/true bazel-bin/bench/overlap_perf
  cp /bin/true bazel-bin/runtime/libdtrun.so.0
  cp /bin/true bazel-bin/runtime/libdtrun_mpi.so
  cp /bin/true bazel-bin/runtime/libdtrun_mpich.so
  cp /bin/true bazel-bin/runtime/libdtrun_ucx.so
  cp /bin/true bazel-bin/models/library/libdtrun_models.so.0.1
  echo '#pragma once' >bazel-bin/models/library/headers/layers/layer.h
  chmod a-w bazel-bin/models/library/headers/layers/layer.h # as after a build by Bazel
  echo '#pragma once' >include/dtrun/any_name.h
  echo '#pragma once' >include/dtrun/detail/part.h
  echo 'inline constexpr char kVersion[] = "1.2.3";' >base/version.h
}

install_all() {
  built_tree
  run scripts/install ../prefix
  expect_status 0
  for file in bin/dtrun bin/cnn_fmnist bin/predict bin/synthetic_benchmark libexec/dtrun/dtrun_agent libexec/dtrun/dtrun_daemon libexec/dtrun/dtrun_listen.so libexec/dtrun/dtrun_local libexec/dtrun/dtrun_probe libexec/dtrun/dtrun_rank libexec/dtrun/dtrun_reach lib/libdtrun.so lib/libdtrun_models.so include/dtrun/any_name.h include/dtrun/detail/part.h include/dtrun/models/layers/layer.h; do
    [[ -e ../prefix/$file ]] || unmet "$file"
  done
  expect_equal "$(find ../prefix -name '.dtrun*')" ""
}
story "install puts programs, libraries and every public header below PREFIX" install_all

core_only() {
  built_tree
  run scripts/install ../prefix
  rm bazel-bin/bench/*_perf # --core neither builds nor installs these
  run scripts/install --core ../prefix
  expect_status 0
  expect_equal "$(cd ../prefix/bin && echo *)" "cnn_fmnist dtrun"
  [[ -e ../prefix/lib/libdtrun.so && ! -e ../prefix/lib/libdtrun_models.so.0.1 ]] || unmet "the library without that of models"
  expect_equal "$(cd ../prefix/include/dtrun && find . -type f | sort | xargs)" "./any_name.h ./detail/part.h"
  run scripts/install ../prefix
  expect_status 1
}
story "install --core removes all files of a full installation except dtrun, its library and cnn_fmnist" core_only

install_fails() {
  built_tree
  rm bazel-bin/bench/overlap_perf # the last file of the table
  run scripts/install ../new/prefix
  expect_status 1
  [[ ! -e ../new ]] || unmet "that no folder is left"
  mkdir ../old
  echo kept >../old/file
  run scripts/install ../old
  expect_equal "$(find ../old -mindepth 1)" ../old/file
}
story "a failing install leaves PREFIX unchanged" install_fails

packages_versioned() {
  built_tree
  run scripts/install ../prefix
  grep -qx 'Version: 1.2.3' ../prefix/lib/pkgconfig/dtrun.pc || unmet "the version for pkg-config"
  grep -qx 'set(PACKAGE_VERSION 1.2.3)' ../prefix/lib/cmake/dtrun/dtrunConfigVersion.cmake || unmet "the version for CMake"
  # The files hold no path of the installation or the build, and no unfilled placeholder.
  ! grep -rIE "prefix/|@[a-z]+@|$PWD|bazel-" ../prefix/lib/cmake ../prefix/lib/pkgconfig ../prefix/*.bazel ||
    unmet "no path and no placeholder"
  echo 'no version' >base/version.h
  run scripts/install ../other
  expect_status 70
  expect_output "base/version.h: expected a version such as 1.2.3, found ''"
}
story "the packages for CMake, pkg-config and Bazel hold the library's version and no path" packages_versioned

bad_prefix() {
  built_tree
  touch ../file
  for prefix in ../file ../file/below; do
    run scripts/install $prefix
    expect_status 2
    expect_last_line "install: $PWD/../file is a file; expected a folder to install to"
  done
  mkdir ../repository
  echo 'cc_library(name = "somebody_elses")' >../repository/BUILD.bazel
  run scripts/install ../repository
  expect_status 2
  expect_output "repository/BUILD.bazel is not dtrun's and would be overwritten"
  expect_equal "$(ls ../repository)" BUILD.bazel
  run scripts/install ../prefix
  run scripts/install ../prefix
  expect_status 0
}
story "a PREFIX that is a file or a foreign Bazel repository is refused at once" bad_prefix

old_header() {
  built_tree
  run scripts/install ../prefix
  mv include/dtrun/any_name.h include/dtrun/new_name.h
  run scripts/install ../prefix
  expect_equal "$(cd ../prefix/include/dtrun && find . -type f | sort | xargs)" "./detail/part.h ./models/layers/layer.h ./new_name.h"
}
story "a header removed from the API is also removed from PREFIX" old_header

end_of_stories

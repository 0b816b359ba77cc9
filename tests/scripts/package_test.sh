#!/usr/bin/env bash
# The archive of scripts/package, made of the files that Bazel has built for this test. It runs on a bare machine with
# only a C library and a shell: a mount namespace with an almost empty root.
source tests/scripts/stories.sh
source tests/consumers/installed.sh

# A clone in which everything is built and every package is installed.
clone_with_build() {
  machine && fresh_clone
  tool dpkg-query <<<'[[ $1 == -S ]] && exec /usr/bin/dpkg-query "$@"; printf "install ok installed"'
  tool apt-get <<<'exit 1'
  tool bazel <<<'exit 0'
  ln -s "$tree" bazel-bin
  cp -rL "$tree/include" "$tree/base" "$tree/python" .
  mkdir bench tests
  cp -rL "$tree/bench/peers" bench/
  cp -rL "$tree/tests/python" tests/
}

# Makes the archive. Sets `archive`, and `unpacked`, the folder with its content.
make_archive() {
  local status=0
  mkdir "$TEST_TMPDIR/made"
  set +e
  (set -e && cd "$TEST_TMPDIR/made" && clone_with_build && scripts/package) >"$TEST_TMPDIR/made/log" 2>&1
  status=$?
  set -e
  if ((status != 0)); then
    echo "FAIL  scripts/package:"
    sed 's/^/        /' "$TEST_TMPDIR/made/log" "$TEST_TMPDIR"/made/clone/build/log/*/*.log
    exit 1
  fi
  archive=$(echo "$TEST_TMPDIR"/made/clone/dist/dtrun-*-x86_64.tar.*)
  mkdir "$TEST_TMPDIR/unpacked"
  tar --extract --file "$archive" --directory "$TEST_TMPDIR/unpacked"
  unpacked=$(echo "$TEST_TMPDIR"/unpacked/dtrun-*-x86_64)
}

make_archive

# The bare machine has only these files of the C library and a shell. /archive is the unpacked archive, /data a data set.
cat >"$TEST_TMPDIR/bare_machine" <<'SH'
#!/usr/bin/env bash
# bare_machine FOLDER DATA COMMAND...: in a mount namespace of its own
set -euo pipefail
root=$(mktemp -d -p "$TEST_TMPDIR")
mkdir -p "$root"/{archive,data,tmp,lib64,usr/bin,lib/x86_64-linux-gnu,proc,dev,sys}
ln -s usr/bin "$root/bin"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
for library in c m mvec pthread dl rt util resolv; do
  cp -L /lib/x86_64-linux-gnu/lib$library.so.[0-9]* "$root/lib/x86_64-linux-gnu/"
done
cp -L "$(command -v dash)" "$root/usr/bin/sh"
cp -L "$(command -v sleep)" "$root/usr/bin/sleep"
for folder in proc dev sys; do mount --rbind "/$folder" "$root/$folder"; done
mount --bind "$1" "$root/archive"
mount --bind "$2" "$root/data"
# shellcheck disable=SC2016 # the inner shell expands them
exec chroot "$root" /bin/sh -c 'cd /archive && exec "$@"' sh "${@:3}"
SH
chmod +x "$TEST_TMPDIR/bare_machine"
data=/usr/share/datasets/fashion-mnist
elsewhere() { limit_s=60 run env -i PATH=/usr/bin:/usr/sbin TEST_TMPDIR="$TEST_TMPDIR" TMPDIR=/tmp OMPI_ALLOW_RUN_AS_ROOT=1 \
  unshare --mount "$TEST_TMPDIR/bare_machine" "$unpacked" "$data" "$@"; }

elf_files_of() { find "$1" -type f -exec sh -c 'head -c 4 "$1" | grep -q ELF' sh {} \; -print; }

small() {
  local bytes
  bytes=$(stat -c %s "$archive")
  ((bytes < 30000000)) || unmet "less than 30 MB, got $bytes"
  run "$unpacked/bin/dtrun" --version
  expect_status 0
  for file in README.txt scripts/gpu_check bench/peers/torch_cnn.py python/dtrun/__init__.py tests/python/torch_cases.py include/dtrun/dtrun.h lib/cmake/dtrun/dtrunConfig.cmake \
    lib/pkgconfig/dtrun.pc libexec/dtrun/dtrun_agent bin/cnn_fmnist checks/models/cnn_fmnist checks/tests/ops/ops_test; do
    [[ -e $unpacked/$file ]] || unmet "$file"
  done
  ! grep -rIlE "@[a-z]+@|$TEST_TMPDIR|bazel-out" "$unpacked" || unmet "no path of this machine and no placeholder"
}

# The archive holds every program of the tables, and the programs of the gpu_check rows that need no GPU.
complete() {
  local from
  while read -r from; do
    [[ -x $unpacked/checks/$from ]] || unmet "checks/$from"
  done < <(sed -nE 's,^ *"//([^"]+):([^"]+)"\,$,\1/\2,p' "$tree/scripts/package.d/files.bzl")
  run python3 "$unpacked/scripts/gpu_check" --list
  while read -r from; do
    [[ -x $unpacked/checks/$from ]] || unmet "checks/$from, for gpu_check"
  done < <(grep -E '^[a-z_0-9]+ +cpu ' <<<"$output" | grep -oE '(launcher|models|bench|tests)(/[a-z_0-9]+)+')
}

# The loader reports the libraries that it takes.
own_libraries() {
  local file taken
  local glibc='^(/lib64/ld-linux-x86-64\.so\.2|/lib/x86_64-linux-gnu/lib(c|m|mvec|pthread|dl|rt|util|resolv)\.so\.[0-9]+)$'
  elf_files_of "$unpacked" | while read -r file; do
    if [[ $file == */lib/* ]] || readelf -d "$file" | grep -q '\[libmpi\.so'; then continue; fi
    taken=$(env -u LD_LIBRARY_PATH LD_TRACE_LOADED_OBJECTS=1 /lib64/ld-linux-x86-64.so.2 "$file" | sed -nE 's,.* => ([^ ]+).*,\1,p')
    grep -q . <<<"$taken" || unmet "that $file takes something"
    if grep -vF "$unpacked/" <<<"$taken" | grep -vE "$glibc"; then unmet "nothing else of this system in $file"; fi
  done
  # Programs that use Open MPI lack only Open MPI.
  run env -u LD_LIBRARY_PATH LD_LIBRARY_PATH="$unpacked/lib/dtrun/open-mpi" ldd "$unpacked/bin/model_perf"
  if grep -vF "$unpacked/" <<<"$output" | grep -vE 'linux-vdso|/lib64/ld-linux|lib(c|m)\.so\.6'; then unmet "all from the archive"; fi
}

glibc_version() {
  local newest
  newest=$(elf_files_of "$unpacked" | xargs objdump -T | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
  [[ $(printf '%s\nGLIBC_2.36\n' "$newest" | sort -V | tail -n 1) == GLIBC_2.36 ]] || unmet "2.36 at most, got $newest"
  grep -q "glibc ${newest#GLIBC_} or newer" "$unpacked/README.txt" || unmet "that README.txt says ${newest#GLIBC_}"
}

hidden() {
  elsewhere sh -c 'for file in /usr/lib/*/libdnnl* /lib/*/libhwloc* /lib/*/libstdc++* /usr/bin/mpirun /usr/bin/bazel; do
    if [ -e "$file" ]; then echo "$file"; fi; done'
  expect_equal "$output" ""
  expect_status 0
}

trains() {
  elsewhere checks/launcher/dtrun --launcher local -np 2 bin/cnn_fmnist --epochs 1 --max-steps 2 --batch-size 64 --data-dir /data --json /tmp/result.json
  expect_status 0
  expect_output "Test: loss "
  expect_output "on all 2 ranks"
}

tests_run() {
  elsewhere sh -c 'cd checks && tests/ops/ops_test -# "[#communicator_test],[#engine_test]"'
  expect_status 0
  expect_output "All tests passed"
  elsewhere sh -c 'cd checks && launcher/dtrun --launcher local --tag none -np 2 tests/ranks/conformance'
  expect_status 0
  expect_output "shm: many checks, 0 wrong"
}

beside_mpi() {
  elsewhere bin/model_perf --help
  expect_status 127
  expect_output "libmpi.so.40"
  elsewhere sh -c 'LD_LIBRARY_PATH=/archive/lib/dtrun/open-mpi exec bin/model_perf --help'
  expect_status 0
}

doctor() {
  elsewhere bin/dtrun doctor bin/cnn_fmnist
  expect_output "CPU"
  expect_no_output "cannot open shared object"
}

gpu_check() {
  limit_s=60 run "$unpacked/scripts/gpu_check" --only version,sharded_2,cnn_cpu --json found.json
  expect_status 0
  expect_output "3 passed, 0 failed, 0 skipped"
  python3 -c 'import json; row = json.load(open("found.json"))["rows"][2]; assert row["result"]["ranks"] == 2, row'
}

# The commands of docs/guides/package.md, in one shell. The archive is already made, and gpu_check runs only some rows.
page() {
  local command commands
  source "$tree/scripts/lib/readme.sh"
  mkdir -p packages/nvidia/{cudnn,nccl}/lib
  touch packages/nvidia/__init__.py
  export PYTHONPATH=$PWD/packages PYTHONDONTWRITEBYTECODE=1
  ln -s "$TEST_TMPDIR/made/clone/dist" dist
  mapfile -t commands < <(readme_commands "$tree/docs/guides/package.md")
  expect_equal "${commands[0]}" scripts/package
  expect_equal "${#commands[@]}" 8
  for command in "${commands[@]:1}"; do
    if [[ $command == bin/dtrun* && ! -d $data ]]; then continue; fi
    if [[ $command == scripts/gpu_check* ]]; then command+=" --only version,doctor"; fi
    echo "$command"
    eval "$command" </dev/null
  done
  expect_equal "$(tr : '\n' <<<"$LD_LIBRARY_PATH" | sort | xargs -n 1 dirname | xargs -n 1 basename | xargs)" "cudnn nccl"
  grep -q '"id": "doctor"' gpu_check.json || unmet "the JSON file of gpu_check"
}

# A program that links the library of the archive keeps its own C++ library and finds all other libraries.
trainer() {
  prefix=$unpacked
  trainer_sources
  pkg_config_flags
  c++ -std=c++17 trainer.cc "${flags[@]}" -o trainer
  run ./trainer
  expect_equal "$output" "1: self"
  run ldd trainer
  expect_output "libdtrun.so.0 => $unpacked/lib/"
  [[ $(grep 'libstdc++' <<<"$output") != *"$unpacked"* ]] || unmet "the compiler's libstdc++"
  run "$unpacked/bin/dtrun" --launcher local --tag none -np 2 ./trainer
  expect_equal "$output" "2: shm"
}

again() {
  cd "$TEST_TMPDIR/made/clone"
  PATH=$TEST_TMPDIR/made/machine
  run scripts/package ../dtrun.tar
  expect_status 2
  expect_output "dtrun.tar'; expected a name that ends in .tar.zst, .tar.xz or .tar.gz"
  mkdir ../folder.tar.gz
  run scripts/package ../folder.tar.gz
  expect_status 2
  expect_output "folder.tar.gz is a folder; expected the file to write"
}

without_catch2() {
  machine && fresh_clone
  cp -rL "$tree/base" .
  tool dpkg-query <<<'[[ $* == *catch2* ]] || printf "install ok installed"'
  tool apt-get <<<'exit 1'
  run scripts/package --no-install
  expect_status 2
  expect_output "apt-get install --no-install-recommends catch2"
}

broken() {
  mkdir bin lib
  cp -L "$tree/scripts/lib/common.sh" "$tree/scripts/lib/relocate.sh" .
  echo 'int cudnnCreate(void) { return 0; }' >cudnn.c
  cc -shared -fPIC -Wl,-soname,libcudnn.so.9 -o libcudnn.so.9 cudnn.c
  echo 'int cudnnCreate(void); int main(void) { return cudnnCreate(); }' >program.c
  cc program.c -o bin/program ./libcudnn.so.9 -Wl,-rpath,"$PWD"
  # shellcheck disable=SC2016 # the inner shell expands them
  run env archive_root="$PWD" bash -c 'mkdir -p x/y; source ./common.sh; source ./relocate.sh; archive_root+=/bin; take_libraries'
  expect_status 70
  expect_output "program links libcudnn.so.9; expected it to be loaded at run time"
}

story "the archive is small and complete and holds no path of the build machine" small
story "the archive holds every program of its table and of gpu_check" complete
story "programs take only the C library from the system" own_libraries
story "glibc 2.36 is new enough" glibc_version
story "gpu_check runs from the archive" gpu_check
story "the commands of docs/guides/package.md run" page
story "a trainer can be built against the archive" trainer
story "an archive that cannot be written is refused at once" again
story "Catch2 is installed too: the archive has tests" without_catch2
story "a program that links an NVIDIA library is refused" broken
if unshare --mount mount --bind "$TEST_TMPDIR" "$TEST_TMPDIR" 2>/dev/null; then on_bare_machine=story; else on_bare_machine=skip_on_this_machine; fi
skip_on_this_machine() { skip_story "$1" "another machine takes the right to mount in a namespace"; }
trains_if_there_is_data=$on_bare_machine
if [[ ! -d $data ]]; then
  data=$TEST_TMPDIR
  trains_if_there_is_data=skip_without_data
fi
skip_without_data() { skip_story "$1" "the package dataset-fashion-mnist is not installed"; }
$on_bare_machine "the bare machine has only a C library and a shell" hidden
$trains_if_there_is_data "two ranks train on the bare machine" trains
$on_bare_machine "tests run on the bare machine as threads and as processes" tests_run
$on_bare_machine "dtrun doctor runs on the bare machine" doctor
$on_bare_machine "on the bare machine, benchmarks that need Open MPI start with the archive's Open MPI" beside_mpi
end_of_stories

#!/usr/bin/env bash
# A machine without MPI: a mount namespace of this machine in which no file of Open MPI exists.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
install_and_move

cd "$TEST_TMPDIR"
trainer_sources
pkg_config_flags
c++ -std=c++17 trainer.cc "${flags[@]}" -o trainer
cc -std=c99 trainer.c "${flags[@]}" -o trainer_c

# Replaces each folder that holds files of Open MPI by a folder of links to all other files. The loader's cache still names the
# libraries, as after a removal of Open MPI.
cat >"$TEST_TMPDIR/hide_mpi" <<'SH'
#!/usr/bin/env bash
# hide_mpi COMMAND...: in a mount namespace of its own
set -euo pipefail
work=$(mktemp -d -p "$TEST_TMPDIR")
mapfile -t folders < <(ldconfig -p | sed -n 's,.* => \(.*\)/libmpi\.so\..*,\1,p' | sort -u)
for folder in "${folders[@]}" /usr/bin; do
  folder=$(readlink -f "$folder")
  mkdir -p "$work/all$folder" "$work/rest$folder"
  mount --bind "$folder" "$work/all$folder"
  ln -s "$work/all$folder"/* "$work/rest$folder"
  (cd "$work/rest$folder" && rm -f -- mpi* ompi* openmpi* orte* opal* libmpi* libopen-* *pmix*)
done
for folder in "${folders[@]}" /usr/bin; do
  folder=$(readlink -f "$folder")
  mount --bind "$work/rest$folder" "$folder"
done
exec "$@"
SH
chmod +x "$TEST_TMPDIR/hide_mpi"
without_mpi() { run unshare --mount "$TEST_TMPDIR/hide_mpi" "$@"; }

hidden() {
  without_mpi sh -c 'cat /usr/lib/*/libmpi.so.* /usr/bin/mpirun; command -v mpirun || command -v orted || echo "no MPI"'
  expect_last_line "no MPI"
  expect_output "/usr/bin/mpirun: No such file"
  expect_no_output "ELF"
}

alone() {
  without_mpi ../trainer
  expect_equal "$output" "1: self"
  without_mpi ../trainer_c
  expect_equal "$output" "1 ranks agree on y = 3.00 x -2.00"
}

rank_of_two() { # rank_of_two VARIABLE=VALUE...: runs a rank of a job of two, which prints one line
  without_mpi env DTRUN_JOB=1 DTRUN_HOSTS=localhost:2 "$@" ../trainer
  expect_status 1
  expect_equal "$(wc -l <<<"$output")" 1
}

missing_libmpi() {
  rank_of_two OMPI_COMM_WORLD_SIZE=2
  expect_output "consumer: the MPI backend cannot be loaded: libmpi.so."
  expect_output "cannot open shared object file: No such file or directory"
}

not_started_by_mpirun() {
  rank_of_two
  expect_output "consumer: found DTRUN_JOB of a job of 2 ranks, but mpirun did not start this process"
}

missing_mpirun() {
  without_mpi "$prefix/bin/dtrun" --launcher mpirun --tag none -np 2 ../trainer
  expect_status 69
  expect_output "dtrun: mpirun was not found in PATH; install Open MPI"
  expect_equal "$(wc -l <<<"$output")" 1
}

without_mpirun() {
  without_mpi "$prefix/bin/dtrun" --tag none -np 2 ../trainer
  expect_status 0
  expect_equal "$output" "2: shm"
  without_mpi "$prefix/bin/dtrun" --launcher local --check-build
  expect_status 0
}

# shellcheck disable=SC2016 # the inner shell expands them
by_hand() {
  without_mpi env WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$((20000 + RANDOM)) \
    sh -c 'RANK=1 ../trainer & RANK=0 ../trainer; status=$?; wait; exit $status'
  expect_status 0
  expect_equal "$output" "2: shm"
}

if unshare --mount mount --bind "$TEST_TMPDIR" "$TEST_TMPDIR" 2>/dev/null; then on_bare_machine=story; else on_bare_machine=skip_on_this_machine; fi
skip_on_this_machine() { skip_story "$1" "hiding MPI takes the right to mount in a namespace"; }

$on_bare_machine "the namespace of these stories has no MPI" hidden
$on_bare_machine "trainers without a launcher run as the only rank" alone
$on_bare_machine "a rank of a job names the missing MPI library" missing_libmpi
$on_bare_machine "a rank that mpirun did not start reports this" not_started_by_mpirun
$on_bare_machine "dtrun reports that mpirun is missing" missing_mpirun
$on_bare_machine "dtrun --launcher local needs no MPI" without_mpirun
$on_bare_machine "ranks started by hand need no MPI" by_hand
end_of_stories

#!/usr/bin/env bash
# The behaviour of quickstart, install and test if packages are missing. No story installs a package: apt is a stand-in.
source tests/scripts/stories.sh

# A Debian without installed packages, and a user without root's rights.
bare_debian() {
  machine
  tool dpkg-query <<<'[[ -e $APT_LOG.installed ]] && printf "install ok installed"'
  tool id <<<'echo 1000'
  tool apt-get <<'SH'
echo "apt-get $*" >>"$APT_LOG"
if [[ $* == *--assume-no* ]]; then
  echo 'Need to get 213 MB/220 MB of archives.'
  echo 'After this operation, 689 MB of additional disk space will be used.'
  exit 1
fi
if [[ $* == *install* ]]; then touch "$APT_LOG.installed"; fi
SH
  export APT_LOG=$PWD/apt.log
  : >"$APT_LOG"
}

with_root() { tool id <<<'echo 0'; }
expect_nothing_installed() { ! grep -v -e --assume-no "$APT_LOG" || unmet "that apt-get installs nothing"; }
with_sudo() { tool sudo <<<'if [[ $1 == -n ]]; then exit 1; fi; "$@"'; }

no_install() {
  bare_debian && fresh_clone
  for script in quickstart "install $PWD/prefix" test; do
    # shellcheck disable=SC2086 # words are words
    run scripts/$script --no-install
    expect_status 2
    expect_output "bazel-bootstrap"
    expect_output "apt-get install --no-install-recommends bazel-bootstrap g++"
  done
  expect_nothing_installed
  [[ ! -e prefix ]] || unmet "no prefix"
}
story "--no-install lists the missing packages and the install command, and exits with 2" no_install

no_terminal() {
  bare_debian && with_sudo && fresh_clone
  run scripts/quickstart
  expect_status 2
  expect_output "no terminal to ask at"
  expect_nothing_installed
}
story "without a terminal and without --yes, no package is installed and no step hangs" no_terminal

no_root() {
  bare_debian && fresh_clone
  run scripts/quickstart --yes
  expect_status 2
  expect_output "root or sudo"
  expect_output "libdnnl-dev"
}
story "without root and without sudo, --yes only lists the missing packages" no_root

sudo_with_password() {
  bare_debian && with_sudo && fresh_clone
  run scripts/quickstart --yes
  expect_status 2
  expect_output "sudo wants a password"
  expect_nothing_installed
}
story "--yes does not wait for the password of sudo" sudo_with_password

announcement() {
  bare_debian && with_sudo && fresh_clone
  run scripts/quickstart
  expect_output "213 MB to download, 689 MB on disk"
}
story "the announced download size comes from apt" announcement

no_lists() {
  bare_debian && with_sudo && fresh_clone
  tool apt-get <<<'echo "E: Unable to locate package g++" >&2; exit 100'
  run scripts/quickstart
  expect_status 2
  expect_output "apt has no package lists yet"
}
story "without apt's package lists, the announced size is an estimate" no_lists

answer() { # answer TEXT: quickstart at a terminal, where a person types TEXT
  limit_s=20 run bash -c "printf '$1\n' | script -qec scripts/quickstart /dev/null"
}

declined() {
  bare_debian && with_sudo && fresh_clone
  answer n
  expect_status 2
  expect_output "Go on? [Y/n]"
  expect_output "nothing was installed"
  expect_nothing_installed
}
story "at a terminal the script asks, and the answer n installs no package" declined

asked_nothing() {
  bare_debian && with_root && fresh_clone
  tool dpkg <<<'exit 0'
  tool bazel <<<'echo the build breaks here; exit 1'
  CI=true run scripts/quickstart
  expect_no_output "Go on?"
  expect_output "[1/5] Debian packages ... done"
  expect_output "the build breaks here"
  expect_status 1
  grep -q 'install.*bazel-bootstrap' "$APT_LOG" || unmet "that apt-get installs"
}
story "with CI=true the script does not ask, and root needs no sudo" asked_nothing

apt_fails() {
  bare_debian && with_root && fresh_clone
  tool dpkg <<<'exit 0'
  tool apt-get <<<'echo "E: the mirror is gone" >&2; exit 100'
  run scripts/quickstart --yes
  expect_status 100
  expect_output "[1/5] Debian packages ... FAILED"
  expect_output "    E: the mirror is gone"
  expect_output "build/log/quickstart/1-packages.log"
  expect_output "Run scripts/quickstart again"
}
story "a failing step shows the last lines and the path of its log" apt_fails

no_apt() {
  machine && fresh_clone
  rm -f "$machine/g++"
  tool id <<<'echo 0'
  run scripts/quickstart --yes
  expect_status 2
  expect_output "this system has no apt"
  expect_output "libdnnl-dev"
  expect_output "--data-dir"
  expect_output "zalandoresearch"
  expect_output "train-images-idx3-ubyte.gz"
}
story "without apt, the message lists the packages and the source of the data" no_apt

own_data() {
  machine && fresh_clone
  rm -f "$machine/g++"
  run scripts/quickstart --yes --data-dir ..
  expect_output "libdnnl-dev"
  expect_no_output "dataset-fashion-mnist"
  run scripts/quickstart --yes --data-dir nowhere
  expect_status 2
  expect_last_line "quickstart: --data-dir: 'nowhere' is not a folder"
}
story "--data-dir replaces the packaged data set" own_data

unknown_option() {
  machine && fresh_clone
  for script in quickstart install test; do
    run scripts/$script --frobnicate
    expect_status 2
    expect_output "--frobnicate"
  done
}
story "an unknown option is refused by name" unknown_option

end_of_stories

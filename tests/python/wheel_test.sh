#!/usr/bin/env bash
# The wheel of scripts/wheel, made of the files that Bazel has built for this test, in an empty virtual environment.
source tests/scripts/stories.sh

export HOME=$TEST_TMPDIR TMPDIR=$TEST_TMPDIR
real=$(dirname "$(dirname "$(readlink -f "$tree/scripts/wheel")")")

# Stand-ins for the tools, because all targets are built and all packages are present.
clone_with_build() {
  machine && fresh_clone
  tool dpkg-query <<<'[[ $1 == -S ]] && exec /usr/bin/dpkg-query "$@"; printf "install ok installed"'
  tool apt-get <<<'exit 1'
  tool bazel <<<'exit 0'
  ln -s "$tree" bazel-bin
  cp -rL "$tree/base" "$tree/python" .
  mkdir -p build
  ln -s "$real/build/python" build/python
}

# Makes the wheel, and installs it. Sets `wheel` and `venv`.
make_wheel() {
  local status=0
  mkdir "$TEST_TMPDIR/made"
  set +e
  (set -e && cd "$TEST_TMPDIR/made" && clone_with_build && scripts/wheel --no-install wheels) >"$TEST_TMPDIR/made/log" 2>&1
  status=$?
  set -e
  if ((status != 0)); then
    echo "FAIL  scripts/wheel:"
    sed 's/^/        /' "$TEST_TMPDIR/made/log" "$TEST_TMPDIR"/made/clone/build/log/*/*.log
    exit 1
  fi
  wheel=$(echo "$TEST_TMPDIR"/made/clone/wheels/dtrun-*.whl)
  venv=$TEST_TMPDIR/venv
  /usr/bin/python3 -m venv "$venv"
  find "$venv" | sort >"$TEST_TMPDIR/before"
}

# Without a compiler, MPI or anything else in PATH.
alone() { run env -i PATH="$venv/bin" HOME="$TEST_TMPDIR" TMPDIR="$TEST_TMPDIR" OMPI_ALLOW_RUN_AS_ROOT=1 "$@"; }

named() {
  [[ $wheel =~ dtrun-[0-9.]+-py3-none-manylinux_2_[0-9]+_x86_64\.whl$ ]] || unmet "a manylinux tag, got $wheel"
  (($(stat -c %s "$wheel") < 15000000)) || unmet "less than 15 MB"
  run "$real/build/python/bin/python" -m auditwheel show "$wheel"
  expect_status 0
  expect_output "is consistent with"
}

installs() {
  run "$venv/bin/python" -m pip install --no-index "$wheel"
  expect_status 0
  alone dtrun --version
  expect_status 0
  alone dtrun --check-build
  expect_status 0
  expect_output "[x] libdtrun.so: $venv/lib/"
}

trains() {
  cat >train.py <<'PY'
import array, ctypes, dtrun
from dtrun import _queue, _abi
from dtrun._job import global_process_set

dtrun.init()
x = array.array("d", [dtrun.rank() + 1.0] * 3)
arrays = _queue.Arrays(lambda one: _queue.View(*one.buffer_info(), _abi.F64, -1, None, (3,)), lambda one: one.buffer_info())
for step in range(20):
    _queue.submit(_abi.ALL_REDUCE, "x", global_process_set, arrays, [x], op=_abi.AVERAGE).wait()
print(list(x), dtrun.size())
PY
  alone dtrun --tag none -np 2 python train.py
  expect_status 0
  expect_equal "$output" $'[1.5, 1.5, 1.5] 2\n[1.5, 1.5, 1.5] 2'
}

trains_with_numpy() {
  cp -L "$tree"/tests/python/*.py .
  run env -i PATH="$venv/bin:/usr/bin:/bin" PYTHONPATH=/usr/lib/python3/dist-packages OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR="$TEST_TMPDIR" dtrun --tag none -np 2 python numpy_cases.py
  expect_status 0
  expect_output "20 cases passed"
}

page() {
  local command commands
  source "$tree/scripts/lib/readme.sh"
  mkdir dist && cp "$wheel" dist/
  mapfile -t commands < <(readme_commands "$tree/docs/guides/python.md")
  expect_equal "${#commands[@]}" 4
  [[ ${commands[0]} == scripts/wheel* ]] || unmet "scripts/wheel, got ${commands[0]}"
  for command in "${commands[@]:1}"; do
    echo "$command"
    if ! eval "$command" >said 2>&1 </dev/null; then cat said && unmet "success"; fi
  done
  (($(grep -c '2 ranks' said) == 2)) || unmet "two lines with '2 ranks', got $(cat said)"
}

uninstalls() {
  run "$venv/bin/python" -m pip uninstall --yes dtrun
  find "$venv" | sort >after
  run diff "$TEST_TMPDIR/before" after
  expect_status 0
}

wrong() {
  machine && fresh_clone
  run scripts/wheel --fast
  expect_status 2
  expect_last_line "wheel: unknown option '--fast'; expected --yes, --no-install or --help"
  touch file
  run scripts/wheel file
  expect_status 2
  expect_output "/file is a file; expected a folder"
}

story "wrong arguments are named" wrong
if [[ -x $real/build/python/bin/auditwheel ]]; then
  make_wheel
  story "the wheel has a manylinux tag that auditwheel confirms" named
  story "the wheel installs without a compiler, MPI or other packages" installs
  story "two ranks work together in an environment with nothing else" trains
  if /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
    story "the wheel works with NumPy" trains_with_numpy
  else
    skip_story "the wheel works with NumPy" "/usr/bin/python3 has no package numpy"
  fi
  story "the commands of docs/guides/python.md run" page
  story "nothing is left after the wheel is uninstalled" uninstalls
else
  skip_story "the wheel can be made, installed and uninstalled" "build/python lacks auditwheel; scripts/test installs it"
fi
end_of_stories

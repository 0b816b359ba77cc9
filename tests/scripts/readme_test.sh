#!/usr/bin/env bash
# Extracting the commands of a README and running them.
source tests/scripts/stories.sh

clone_with_readme() { # the README comes from standard input
  fresh_clone
  cat >README.md
}

extraction() {
  # shellcheck source=scripts/lib/readme.sh
  source "$tree/scripts/lib/readme.sh"
  printf '%s\n' text '```sh' '# a comment' 'one   # said aside' '' '$ two \' '    more' '```' '```cpp' 'int x;' '```' \
    '```' 'not ours' '```' '```sh' 'three' '```' >README.md
  expect_equal "$(readme_commands README.md)" $'one\ntwo more\nthree'
  expect_equal "$(readme_blocks README.md cpp)" $'int x;\n\f'
}
story "commands are extracted without comments and with joined lines" extraction

unclosed() {
  source "$tree/scripts/lib/readme.sh"
  printf '```sh\nls\n' >README.md
  run bash -c "source '$tree/scripts/lib/readme.sh'; readme_blocks README.md sh"
  expect_status 1
  expect_output "not closed"
}
story "an unclosed block is an error" unclosed

unknown_command() {
  clone_with_readme <<<$'```sh\nrm -rf /nowhere\n```'
  run scripts/lib/run_readme
  expect_status 1
  expect_output "FAIL  rm -rf /nowhere is not in the table"
  expect_last_line "0 passed, 1 failed, 0 skipped"
}
story "a command that is not in the table fails" unknown_command

commands_run() {
  clone_with_readme <<'MD'
```sh
git clone https://example.org/dtrun
cd dtrun
scripts/test
export PATH="$PWD/dist/bin:$PATH"
cd dist/bin
dtrun -np 8 ./cnn_fmnist --epochs 8
dtrun -np 4 -H node1:2,node2:2 ./cnn_fmnist
```
MD
  mkdir -p dist/bin
  printf '#!/bin/bash\necho "$PWD: $*" >>"%s/calls"\n' "$PWD" >dist/bin/dtrun
  chmod +x dist/bin/dtrun
  run scripts/lib/run_readme
  expect_status 0
  expect_last_line "3 passed, 0 failed, 1 skipped"
  expect_equal "$(cat calls)" "$PWD/dist/bin: -np 8 ./cnn_fmnist --epochs 1 --max-steps 2 --batch-size 64"
}
story "commands run in order in one shell with shortened training" commands_run

failing_command() {
  clone_with_readme <<<$'```sh\nscripts/quickstart\n```'
  printf '#!/bin/bash\necho it is broken; exit 3\n' >scripts/quickstart
  run scripts/lib/run_readme
  expect_status 1
  expect_output "FAIL  scripts/quickstart failed with exit code 3"
  expect_output "    it is broken"
}
story "a failing command shows its output" failing_command

cpp_blocks() {
  clone_with_readme <<<$'```cpp\n#include <dtrun/dtrun.h>\n\nint main() {}\n```'
  mkdir examples
  printf '#include <dtrun/dtrun.h>\n\nint main() {}\n' >examples/sgd.cc
  run scripts/lib/run_readme
  expect_status 0
  expect_output "C++ block is examples/sgd.cc"
  printf '#include <dtrun/dtrun.h>\n\nint main() { }\n' >examples/sgd.cc
  run scripts/lib/run_readme
  expect_status 1
  expect_last_line "0 passed, 1 failed, 0 skipped"
}
story "a C++ block that differs by one byte from the compiled example fails" cpp_blocks

end_of_stories

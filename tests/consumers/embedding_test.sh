#!/usr/bin/env bash
# shellcheck disable=SC2016 # Markdown's marks of code look like commands of the shell
# Checks docs/guides/embedding.md: its code blocks are pieces of programs that are built and run here, and the names in its
# tables exist. embedding_commands_test.sh runs its commands.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
source scripts/lib/readme.sh
install_and_move

page=$tree/docs/guides/embedding.md
programs=("$tree"/tests/consumers/*.cc "$tree"/tests/consumers/cmake*/* "$tree"/tests/consumers/bazel/* "$tree"/examples/*.c*)

build_and_run() { # build_and_run NAME EXPECTED-OF-TWO-RANKS
  pkg_config_flags
  c++ -std=c++17 -Wall -Wextra -Werror -Wconversion -Wshadow -pthread "$tree/tests/consumers/$1.cc" "${flags[@]}" -o "$1"
  run "./$1"
  expect_status 0
  run "$prefix/bin/dtrun" --tag none -np 2 "./$1"
  expect_equal "$output" "$2"
}

pieces_run() { build_and_run embedding "2 ranks learn 2.000, well"; }
story "the program with the code blocks of the page trains" pieces_run

tables_run() { build_and_run migration "1 of 2"; }
story "the dtrun side of the migration tables runs" tables_run

# Whether the block is a sequence of whole lines of one program. Their common indentation does not count.
shown_in_a_program() { # shown_in_a_program BLOCK
  python3 - "$1" "${programs[@]}" <<'PY'
import sys

block, files = open(sys.argv[1]).read().rstrip("\n").split("\n"), sys.argv[2:]
for file in files:
    lines = open(file).read().split("\n")
    for first in range(len(lines) - len(block) + 1):
        piece = lines[first : first + len(block)]
        indent = len(piece[0]) - len(piece[0].lstrip())
        if all(a == (" " * indent + b if b else "") for a, b in zip(piece, block)):
            sys.exit(0)
sys.exit(1)
PY
}

blocks_are_programs() {
  local language block number=0
  for language in cpp c cmake starlark; do
    readme_blocks "$page" $language >blocks
    csplit --quiet --suppress-matched --elide-empty-files --prefix="$language-" blocks $'/^\f$/' '{*}'
  done
  for block in {cpp,c,cmake,starlark}-*; do
    number=$((number + 1))
    shown_in_a_program "$block" || unmet "a program of tests/consumers or examples with these lines: $(cat "$block")"
  done
  ((number >= 11)) || unmet "eleven blocks at least, got $number"
  expect_equal "$(grep '^```.' "$page" | sort -u | tr '\n' ' ')" '```c ```cmake ```cpp ```sh ```starlark '
}
story "every block of C, C++, CMake and Starlark is a piece of a program that is built" blocks_are_programs

one_byte() {
  readme_blocks "$page" c | sed '/^\f$/,$d' >block
  shown_in_a_program block
  sed -i '2s/NULL/0/' block
  ! shown_in_a_program block || unmet "that a block which differs is found"
}
story "a block that differs from its program is found" one_byte

# Prints the code in the second column of the tables below "Coming from", one piece per line.
our_side() {
  awk -F'|' '/^## /{ coming = /^## Coming from/ } coming && /^\| / { print $3 }' "$page" | grep -o '`[^`]*`' | tr -d '`'
}

our_side_exists() {
  local code number=0
  tr -s ' \n' ' ' <"$tree/tests/consumers/migration.cc" | sed 's/( /(/g' >compiled
  cp /bin/true trainer
  while read -r -u 3 code; do
    number=$((number + 1))
    case $code in
      "dtrun -np "*)
        # shellcheck disable=SC2086 # words are words
        run "$prefix/bin/dtrun" --dry-run ${code#dtrun }
        expect_status 0
        ;;
      DTRUN_* | wire_dtype) grep -qF "\`$code\`" "$tree/docs/reference/options.md" || unmet "$code in docs/reference/options.md" ;;
      *) grep -qF -- "$code" compiled || unmet "'$code' in tests/consumers/migration.cc" ;;
    esac
  done 3< <(our_side)
  ((number >= 60)) || unmet "sixty calls at least, got $number"
}
story "every entry on the dtrun side of the migration tables is compiled or is an option" our_side_exists

# Prints the rows of the table of headers: "context.h `Init`, `Context`: rank ..."
headers_table() { sed -n 's,^| `dtrun/\([a-z_0-9/]*\.h\)` | \(.*\) |$,\1 \2,p' "$page"; }

headers_have() {
  local header what name
  expect_equal "$(headers_table | cut -d' ' -f1 | grep -v ^detail/ | sort)" "$(cd "$prefix/include/dtrun" && grep -L 'its place now' -- *.h | sort)"
  while read -r -u 3 header what; do
    for name in $(grep -o '`[A-Za-z]*[`(]' <<<"$what" | tr -d '`('); do
      grep -qw "$name" "$prefix/include/dtrun/$header" || unmet "$name in $header"
    done
  done 3< <(headers_table)
}
story "the table of headers lists every header and only names that exist in the header" headers_have

codes_listed() {
  local code
  while read -r -u 3 code; do
    grep -q "^| .*\`$code\`.*|" "$page" || unmet "$code in a table"
  done 3< <(sed -n 's/^ *\(k[A-Za-z]*\) = DTRUN_.*/\1/p' "$prefix/include/dtrun/error.h")
}
story "every error code is in the table of errors" codes_listed

end_of_stories

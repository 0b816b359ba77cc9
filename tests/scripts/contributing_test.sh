#!/usr/bin/env bash
# CONTRIBUTING.md and docs/internals/architecture.md name only existing files, folders, links, labels and scripts. What scripts
# expect of source files is so.
source tests/scripts/stories.sh

# The pages name files of the whole repository, so the tests look in the repository and not in the runfiles.
real=$(dirname "$(readlink -f "$tree/CONTRIBUTING.md")")

# Prints the words between backquotes, one per line, without the command blocks.
quoted_words() { # quoted_words PAGE
  # shellcheck disable=SC2016 # the backquotes are Markdown's
  awk '/^```/ { inside = !inside; next } !inside' "$1" | grep -oE '`[^`]+`' | tr -d '`'
}

# A page may shorten a path at its beginning: detail/statistics.h is include/dtrun/detail/statistics.h. NAME is a placeholder.
# Words that begin with a hyphen, a bracket or a dollar sign are no paths.
is_there() { # is_there WORD
  local name=${1%/}
  [[ -e $real/$name ]] || grep -qE "(^|/)${name//./\\.}$" <<<"$listed"
}

list_repository() {
  listed=$(cd "$real" && find . -mindepth 1 \( -name .git -o -name 'bazel-*' -o -path ./build -o -path ./dist \) -prune -o -print)
}

paths_of() { # paths_of PAGE
  quoted_words "$1" | grep -E '^[A-Za-z_.][A-Za-z0-9_./-]*(/|\.(h|cc|cu|c|md|sh|py|txt|bzl|bazel))$|^[a-z_]+(/[A-Za-z0-9_.-]+)+$' | grep -v NAME || true
}

paths_exist() {
  local page path missing="" count=0
  list_repository
  for page in CONTRIBUTING.md docs/internals/architecture.md; do
    while read -r path; do
      count=$((count + 1))
      is_there "$path" || missing+="$page: $path"$'\n'
    done < <(paths_of "$real/$page" | grep -vxE 'mpi\.h|build/python')
  done
  ((count > 100)) || unmet "more than 100 paths, got $count"
  expect_equal "$missing" ""
}

links_lead_somewhere() {
  local page link missing="" count=0
  while read -r page; do
    while read -r link; do
      count=$((count + 1))
      [[ -e $real/$(dirname "$page")/$link ]] || missing+="$page: $link"$'\n'
    done < <(grep -oE '\]\([^)# ]+[)#]' "$real/$page" | sed 's/^](//; s/.$//' | grep -v '^https\?:')
  done < <(cd "$real" && printf '%s\n' ./*.md && find docs -name '*.md')
  ((count > 100)) || unmet "more than 100 links, got $count"
  expect_equal "$missing" ""
}

# The index lists all pages, and the README fits two screens.
pages_are_found() {
  local page missing=""
  while read -r page; do
    grep -qF "](${page#docs/})" "$real/docs/index.md" || missing+="$page"$'\n'
  done < <(cd "$real" && find docs -name '*.md' ! -name index.md)
  expect_equal "$missing" ""
  (($(wc -l <"$real/README.md") <= 100)) || unmet "a README of at most 100 lines"
}

# //a/b:c is a name in a/b/BUILD.bazel. A name that a loop makes is recognized by the part after its first underscore.
label_is_there() { # label_is_there LABEL
  local package=${1#//} name
  name=${package#*:}
  package=${package%%:*}
  if [[ $name == "$package" ]]; then name=${package##*/}; fi
  grep -qE "\"$name\"" "$real/$package/BUILD.bazel" || grep -qE "\"_${name#*_}\"" "$real/$package/BUILD.bazel"
}

labels_exist() {
  local label missing="" count=0
  while read -r label; do
    count=$((count + 1))
    case $label in
      */...) [[ -n $(find "$real/$(sed 's,^//,,; s,/\.\.\.$,,' <<<"$label")" -name BUILD.bazel -print -quit) ]] || missing+="$label"$'\n' ;;
      *) label_is_there "$label" || missing+="$label"$'\n' ;;
    esac
  done < <(grep -ohE '//[a-z_0-9]+[a-zA-Z_0-9/.:]*' "$real/CONTRIBUTING.md" "$real/docs/internals/architecture.md")
  ((count > 10)) || unmet "more than 10 labels, got $count"
  expect_equal "$missing" ""
}

recipes_are_tested() {
  local recipe
  for recipe in "Add a CPU optimizer" "Add a collective kind" "Add a launch engine" "Add a layer" "Fix a bug in mpirun's argv"; do
    awk -v title="### $recipe" '$0 == title { here = 1; next } /^### / { here = 0 } here' "$real/CONTRIBUTING.md" |
      grep -qE '^bazel test //tests/[a-z_/]+:[a-z_]+$' || unmet "a test in the recipe '$recipe'"
  done
}

every_command_is_known() {
  local unknown
  unknown=$(awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$real/CONTRIBUTING.md" |
    grep -vE '^(bazel (test|build) //|scripts/)' || true)
  expect_equal "$unknown" ""
}

# The quickstart compiles it to say how long the build takes, before it installs packages.
measured_before_packages() {
  local headers packages
  # shellcheck source=/dev/null
  headers=$(cd "$real" && source scripts/lib/quickstart_measure.sh && g++ -std=c++20 -I. -Iinclude -M "$measured_file")
  headers=$(grep -oE '/usr/[^ ]+' <<<"$headers" | xargs realpath)
  packages=$(xargs dpkg -S <<<"$headers" | cut -d: -f1 | sort -u | paste -sd ' ')
  [[ "$packages " =~ ^((libc6|libgcc-[0-9]+|libstdc\+\+-[0-9]+|linux-libc)-dev )+$ ]] || unmet "the compiler's own packages, got $packages"
}

story "every file and folder that the pages name exists" paths_exist
story "every link of the pages leads to an existing file" links_lead_somewhere
story "the index lists every page, and the README has at most 100 lines" pages_are_found
story "every label that the pages name is in a BUILD file" labels_exist
story "every recipe ends with the test that covers it" recipes_are_tested
story "every block of commands calls bazel or a script" every_command_is_known
story "the file with which the quickstart measures the compiler needs no other package" measured_before_packages
end_of_stories

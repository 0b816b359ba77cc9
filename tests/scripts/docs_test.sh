#!/usr/bin/env bash
# scripts/docs, on a copy of the repository.
source tests/scripts/stories.sh

limit_s=120

site_is_built() {
  local page
  copy_of_repository
  run scripts/docs --no-install ../site
  expect_status 0
  expect_last_line "Open $(realpath ../site)/index.html"
  while read -r page; do
    [[ -s ../site/${page%.md}.html ]] || unmet "a page for docs/$page"
  done < <(cd docs && find . -name '*.md' ! -name index.md)
  grep -q '<h1 id="dtrun">' ../site/index.html || unmet "the README as the first page"
  grep -q 'StartAllReduce' ../site/api/classdtrun_1_1Communicator.html || unmet "the methods of Communicator"
  grep -q 'late_by_rank_s' ../site/api/structdtrun_1_1ReducerStatistics.html || unmet "a public type of a header in detail/"
  [[ -z $(find ../site/api -name '*1_1detail*' -o -name '*1_1internal*') ]] || unmet "no internal names"
  grep -q 'dtrun_init' ../site/api/c_8h.html || unmet "the functions of c.h"
  grep -q 'unknown option' ../site/reference/messages.html || unmet "the list of messages"
  grep -q 'Join() under NoSync()' ../site/reference/messages.html || unmet "the messages of the headers"
  page=$(grep -rl --include='*.html' '```' ../site | head -n 1) || true
  [[ -z $page ]] || unmet "all code of $page as code"
  grep -q 'examples/sgd.cc<a' ../site/source/examples/sgd.cc.html || unmet "the example that a page links to"
}

site_is_replaced() {
  copy_of_repository
  mkdir other && touch other/notes
  run scripts/docs --no-install other
  expect_status 2
  expect_output "other: found other files; expected an empty folder or a site of an earlier run"
  [[ -e other/notes ]] || unmet "the file that was there"
}

dead_links_are_named() {
  copy_of_repository
  echo 'See [the options](../reference/options.md#no-such-heading).' >>docs/guides/slurm.md
  run scripts/docs --no-install ../site
  expect_status 1
  expect_output "guides/slurm.html: ../reference/options.html#no-such-heading: the page has no such heading"
  echo 'See [a page](no_such_page.md).' >>docs/guides/slurm.md
  run scripts/docs --no-install ../site
  expect_status 1
  expect_output "'guides/slurm.md' contains a link to 'guides/no_such_page.md'"
}

undocumented_functions_are_named() {
  copy_of_repository
  sed -i 's,^}  // namespace dtrun$,void NobodySaysWhy();\n&,' include/dtrun/context.h
  sed -i 's,^}  // namespace dtrun$,void NorHere();\n&,' include/dtrun/detail/statistics.h
  sed -i 's,^}  // namespace detail$,void Internal();\n&,' include/dtrun/detail/statistics.h
  run scripts/docs --no-install ../site
  expect_output "context.h:"
  expect_output "NobodySaysWhy() (function) of namespace dtrun is not documented"
  expect_output "NorHere() (function) of namespace dtrun is not documented"
  expect_no_output "Internal()"
  ((status != 0)) || unmet "another exit code than 0"
}

missing=
for tool in mkdocs doxygen; do command -v "$tool" >/dev/null || missing=$tool; done
if [[ -n $missing ]]; then
  skip_story "the site of the pages" "$missing was not found; scripts/docs --yes installs Debian's package"
  end_of_stories
  exit
fi
story "the site holds each page, the README, the API and the linked sources, without a warning" site_is_built
story "an output folder with other files is not replaced" site_is_replaced
story "a link to a missing heading or page is reported" dead_links_are_named
story "a public function without a comment is reported, an internal function is not" undocumented_functions_are_named
end_of_stories

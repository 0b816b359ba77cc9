#!/usr/bin/env bash
# The files of debian/ and packaging/ agree with the source. These tests build no package.
source tests/scripts/stories.sh

functions=$tree/tests/abi/functions.txt

source_version() { (cd "$tree" && source scripts/lib/common.sh && source scripts/lib/tables.sh && source_version); }

field() { sed -n "s/^$2: *//p" "$1"; } # field FILE NAME

versions_agree() {
  local version
  version=$(source_version)
  expect_equal "$(sed -nE '1s/^dtrun \(([^)]+)\) .*/\1/p' "$tree/debian/changelog")" "$version"
  expect_equal "$(sed -nE 's/^    version\("([^"]+)"\)$/\1/p' "$tree/packaging/spack/packages/dtrun/package.py")" "$version"
  expect_equal "$(sed -nE 's/^  "version": "([^"]+)",$/\1/p' "$tree/packaging/vcpkg/dtrun/vcpkg.json")" "$version"
}

# The C ABI is listed by name; libdtrun_models is the library of one series of versions.
symbols_are_listed() {
  local series next symbols=$tree/debian/libdtrun0.symbols
  diff <(sed -nE 's/^ (dtrun_[a-z0-9_]+)@DTRUN_0 .*/\1/p' "$symbols") <(sed 's/(.*//' "$functions" | LC_ALL=C sort)
  IFS=. read -r major minor _ <<<"$(source_version)"
  series=$major.$minor next=$major.$((minor + 1))
  grep -qxF "libdtrun_models.so.$series libdtrun0 #MINVER#, libdtrun0 (<< $next~)" "$symbols" ||
    unmet "libdtrun_models.so.$series below version $next in debian/libdtrun0.symbols"
  grep -qxF " (symver)DTRUN_MODELS_$series $series.0" "$symbols" || unmet "the symbols of series $series"
}

build_depends() { awk '/^Build-Depends:/ { here = 1; next } /^[^ ]/ { here = 0 } here' "$tree/debian/control" | tr -d ' ,'; }

build_packages_are_named() {
  local name missing=""
  build_depends >named
  while read -r name; do
    grep -qx "$name" named || missing+="$name "
  done < <(awk '!/^#/ && ($2 == "build" || $2 == "run") && $1 != "g++" { print $1 }' "$tree/scripts/packages.txt") # g++: essential
  expect_equal "$missing" ""
}

# A tree of empty files with the names that scripts/install installs, moved to Debian's folders by debian/rules.
debian_folders() {
  local file
  cp -rL "$tree/debian" "$tree/base" .
  while read -r file; do
    mkdir -p "debian/tmp/usr/$(dirname "$file")"
    touch "debian/tmp/usr/$file"
  done < <({
    sed -nE 's/^ +"([^"]+)": "(\/\/|lib).*/\1/p' "$tree/scripts/install.d/files.bzl" | sed 's,^include.*,&/all.h,'
    cd "$tree/scripts/install.d" && find . -name '*.in' | sed 's/\.in$//'
  })
  mkdir bin
  ln -s /usr/bin/true bin/patchelf # these files are empty
  PATH=$PWD/bin:$PATH make --silent -f debian/rules debian-folders
}

# dh_install copies the files that match a pattern. The patterns of all packages match each file once.
each_file_is_in_one_package() {
  local file pattern count
  debian_folders
  while read -r file; do
    count=0
    while read -r pattern; do
      # shellcheck disable=SC2053 # a pattern
      if [[ $file == $pattern || $file == $pattern/* ]]; then count=$((count + 1)); fi
    done < <(cat debian/*.install <(grep -v '^#' debian/not-installed))
    ((count == 1)) || unmet "$file in one list, found it in $count"
  done < <(cd debian/tmp && find . ! -type d | sed 's,^\./,,')
  for file in usr/bin/dtrun usr/bin/cnn_fmnist usr/libexec/dtrun-examples/predict usr/libexec/dtrun/dtrun_agent \
    usr/lib/x86_64-linux-gnu/dtrun/libdtrun_mpi.so usr/lib/x86_64-linux-gnu/dtrun/libdtrun_mpich.so \
    usr/lib/x86_64-linux-gnu/dtrun/libdtrun_ucx.so usr/lib/x86_64-linux-gnu/pkgconfig/dtrun.pc; do
    [[ -e debian/tmp/$file ]] || unmet "$file"
  done
}

# dh_installexamples fails for a pattern without a file.
example_patterns_match() {
  local pattern
  while read -r pattern; do
    compgen -G "$tree/$pattern" >found || unmet "a file for $pattern in debian/dtrun-examples.examples"
  done <"$tree/debian/dtrun-examples.examples"
}

control_fields() {
  local package
  for package in libdtrun0 libdtrun-dev dtrun dtrun-examples; do
    grep -qx "Package: $package" "$tree/debian/control" || unmet "the package $package"
  done
  awk '/^Package: dtrun$/ { here = 1 } /^$/ { here = 0 } here' "$tree/debian/control" | grep -qx ' openmpi-bin,' ||
    unmet "that dtrun depends on openmpi-bin"
  grep -q 'No licence has been chosen by the owner' "$tree/debian/copyright" || unmet "what is known of the licence"
}

unrun_recipes_say_so() {
  local file
  for file in spack/repo.yaml spack/packages/dtrun/package.py vcpkg/dtrun/portfile.cmake; do
    [[ $(head -n 1 "$tree/packaging/$file") == "# Not run: "* ]] || unmet "'# Not run:' in the first line of packaging/$file"
  done
  grep -q '"Not run: ' "$tree/packaging/vcpkg/dtrun/vcpkg.json" || unmet "'Not run:' in vcpkg.json"
}

wrong_calls() {
  machine && fresh_clone
  run scripts/debian --frobnicate
  expect_status 2
  expect_output "unknown option '--frobnicate'"
  touch ../file
  run scripts/debian ../file
  expect_status 2
  expect_output "file is a file; expected a folder to write to"
  tool apt-get <<<'exit 1'
  tool dpkg-query <<<'exit 1'
  run scripts/debian --no-install --chroot
  expect_status 2
  expect_output "apt-get install --no-install-recommends debhelper dpkg-dev lintian mmdebstrap"
}

story "changelog and recipes have the version of base/version.h" versions_agree
story "the symbols file lists the C ABI, and the series of the training library" symbols_are_listed
story "the build dependencies are the packages of scripts/packages.txt" build_packages_are_named
if [[ -e /usr/share/dpkg/buildopts.mk && $(uname -m) == x86_64 ]]; then
  story "each installed file is in one package" each_file_is_in_one_package
else
  skip_story "each installed file is in one package" "dpkg-dev was not found; scripts/debian --yes installs Debian's package"
fi
story "each pattern of examples in debian/ has a file" example_patterns_match
story "there are four packages, dtrun depends on Open MPI, and nobody claims a licence" control_fields
story "recipes that no test runs say so in their first line" unrun_recipes_say_so
story "scripts/debian refuses unknown options, a file as its folder, and missing packages" wrong_calls
end_of_stories

#!/usr/bin/env bash
# scripts/debian --chroot on a copy of the repository: two clean chroots, one to build in, one to install and test in.
source tests/scripts/stories.sh

packages_work() {
  copy_of_repository
  # One core: other tests run meanwhile.
  limit_s=3400 run env DEB_BUILD_OPTIONS=parallel=1 scripts/debian --no-install --chroot ../packages
  tail -n 40 build/log/debian/*.log
  expect_status 0
  ls ../packages
  for package in libdtrun0 libdtrun-dev dtrun dtrun-examples; do
    [[ -e $(echo ../packages/"$package"_*_amd64.deb) ]] || unmet "the package $package"
  done
  cd build/log/debian
  grep -q '^/usr/share/man/man1/dtrun.1.gz$' 5-chroot.log || unmet "that man finds the page of dtrun"
  grep -q 'on all 2 ranks' 5-chroot.log || unmet "that two ranks train"
  grep -q '2 ranks agree on' 5-chroot.log || unmet "that a trainer is built and runs"
  expect_equal "$(tail -n 1 4-lintian.log)" ""
}

for tool in mmdebstrap lintian dh; do
  if ! command -v "$tool" >/dev/null; then
    skip_story "the packages of a clean chroot work in a clean chroot" "$tool was not found; scripts/debian --yes installs Debian's package"
    end_of_stories
    exit
  fi
done
story "packages built in a clean chroot are lintian clean, and train and build trainers in another one" packages_work
end_of_stories

#!/usr/bin/env bash
# packaging/conan: `conan create` builds dtrun and a trainer on it. With core=True, which is half of the build, and on one core.
source tests/scripts/stories.sh

real=$(dirname "$(readlink -f "$tree/CONTRIBUTING.md")")
conan=$real/build/conan/bin/conan

package_is_created() {
  export CONAN_HOME=$PWD/conan
  copy_of_repository
  run "$conan" profile detect
  expect_status 0
  limit_s=1700 run "$conan" create packaging/conan -o 'dtrun/*:core=True' -s build_type=Release \
    -c tools.build:jobs=1 -c tools.system.package_manager:mode=check
  expect_status 0
  expect_output "2 ranks agree on 0.500"
}

if [[ -x $conan ]]; then
  story "conan create builds a package, and a trainer on it that runs as two ranks" package_is_created
else
  skip_story "conan create builds a package" \
    "build/conan was not found; scripts/lib/make_python build/conan packaging/conan/requirements.txt makes it"
fi
end_of_stories

"""The files that scripts/install installs, as Bazel builds them: the data of tests that call scripts/install."""

load("//scripts:install.d/files.bzl", "INSTALLED_FILES", "MORE_FOLDERS")

INSTALLED_TREE = INSTALLED_FILES.values() + MORE_FOLDERS.values() + [
    "//base:version.h",
    "//include/dtrun:all_headers",
    "//tests/consumers:installed.sh",
]

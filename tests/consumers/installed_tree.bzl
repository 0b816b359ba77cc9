"""What scripts/install installs, as Bazel builds it: the data of tests that call it."""

load("//scripts:install.d/files.bzl", "INSTALLED_FILES", "MORE_FOLDERS")

INSTALLED_TREE = INSTALLED_FILES.values() + MORE_FOLDERS.values() + [
    "//base:version.h",
    "//include/dtrun:all_headers",
    "//tests/consumers:installed.sh",
]

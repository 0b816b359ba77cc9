"""Targets that need LibTorch are skipped where it is not installed: `target_compatible_with = NEEDS_LIBTORCH`."""

load("@libtorch//:found.bzl", "LIBTORCH_FOUND")

NEEDS_LIBTORCH = [] if LIBTORCH_FOUND else ["//scripts/bazel:libtorch_is_missing"]

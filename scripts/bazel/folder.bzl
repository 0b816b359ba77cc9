"""`folder_library`: a folder as one library."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def folder_library(name, visibility, programs = [], **kwargs):
    """All sources and headers of a folder, apart from the sources of programs, which are handed on to other packages.

    Args:
      name: the target.
      visibility: of the library, and of the sources of programs.
      programs: files that each have a `main`.
      **kwargs: as in cc_library.
    """
    cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = programs),
        hdrs = native.glob(["*.h"]),
        visibility = visibility,
        **kwargs
    )
    native.exports_files(programs, visibility)

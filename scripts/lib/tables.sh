# shellcheck shell=bash
# The tables of files that Bazel reads as well (scripts/*.d/files.bzl), a line at a time, and where Bazel puts a target.

# The entries of a dictionary, a line each: "place target".
table_rows() { # table_rows FILE TABLE
  sed -nE "/^$2 = \{/,/^\}/"'s/^ *"([^"]+)": "([^"]+)",$/\1 \2/p' "$1"
}

# The entries of a list, a line each.
list_rows() { # list_rows FILE LIST
  sed -nE "/^$2 = \[/,/^\]/"'s/^ *"([^"]+)",$/\1/p' "$1"
}

# The rows of a kind of thing that is installed. With `core_only` it is what the quickstart runs.
installed() { # installed FILES|LINKS|FOLDERS
  if [[ $1 != FOLDERS ]]; then table_rows scripts/install.d/files.bzl "CORE_$1"; fi
  if ! ${core_only:-false}; then table_rows scripts/install.d/files.bzl "MORE_$1"; fi
}

installed_targets() { { installed FILES && installed FOLDERS; } | cut -d' ' -f2; }

# Whether Bazel builds for GPUs: as @cuda looks for the toolkit (scripts/bazel/system_libraries.bzl).
has_cuda() {
  local folder
  [[ ${DTRUN_CUDA:-auto} != 0 ]] || return 1
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /opt/cuda; do
    if [[ -n $folder && -e $folder/include/cuda.h && -e $folder/bin/nvcc ]]; then return 0; fi
  done
  return 1
}

target_path() { sed 's,^//,,; s,:,/,' <<<"$1"; }       # //launcher:dtrun -> launcher/dtrun
built_file() { echo "bazel-bin/$(target_path "$1")"; } # //launcher:dtrun -> bazel-bin/launcher/dtrun

# The version that base/version.h states.
source_version() {
  local version
  version=$(sed -n 's/^inline constexpr char kVersion.* = "\(.*\)";$/\1/p' base/version.h)
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die 70 "base/version.h: expected a version such as 1.2.3, found '$version'"
  echo "$version"
}

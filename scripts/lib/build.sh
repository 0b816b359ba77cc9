# shellcheck shell=bash
# Calling Bazel. Needs common.sh.

# Without a terminal Bazel prints what failed and nothing else.
bazel_quietly() { # bazel_quietly COMMAND ARGUMENT...
  (cd "$repo" && bazel "$1" --noshow_progress --noshow_loading_progress --ui_event_filters=-info,-debug "${@:2}")
}

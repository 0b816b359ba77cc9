#!/usr/bin/env bash
# Each header of an installed dtrun that was moved compiles alone: a hundred runs of a compiler.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
install_and_move

# With Clang, which does that fastest, or without it with GCC.
each_alone() { # each_alone FLAG...: the headers of the file `headers`
  local compiler=g++
  if command -v clang++ >/dev/null; then compiler=clang++; fi
  mkdir alone
  awk '{ file = $0; gsub("/", "_", file); print "#include <" $0 ">" >("alone/" file ".cc") }' headers
  find alone -name '*.cc' | sort | xargs -P "$(nproc)" -n 1 $compiler "$@" -I"$prefix/include" -fsyntax-only
}

of_trainers() {
  trainer_headers >headers
  each_alone "${trainer_warnings[@]}"
}
story "each header for trainers compiles alone" of_trainers

of_training_library() {
  models_headers >headers
  each_alone "${models_warnings[@]}"
}
story "each header of the training library compiles alone" of_training_library

end_of_stories

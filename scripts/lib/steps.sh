# shellcheck shell=bash
# Numbered steps, and asides between them. Each runs in a process group of its own with its output in a log, so that an
# interrupt ends all of it.
# Needs common.sh.

begin_steps() { # begin_steps NAME COUNT: logs go to build/log/NAME
  step_count=$2
  step_number=0
  step_group=
  ticker=
  log_dir=$repo/build/log/$1
  mkdir -p "$log_dir"
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM HUP
}

# One line per step: the title, at a terminal the seconds so far, at the end the time taken.
step() { # step TITLE LOGNAME COMMAND...
  enter_step "$1" "$2"
  start_ticker
  run_in_group "$log" "${@:3}"
  stop_ticker
  finish_step
}

# A step that stays in this script's own process group.
foreground_step() { # foreground_step TITLE LOGNAME COMMAND...
  enter_step "$1" "$2"
  printf '%s ... ' "$title"
  set +e
  (set -e && "${@:3}") >"$log" 2>&1 </dev/null
  step_status=$?
  set -e
  finish_step
}

finish_step() {
  if ((step_status != 0)); then
    printf 'FAILED after %s\n' "$(step_took)"
    step_failed
  fi
  printf 'done (%s)\n' "$(step_took)"
}

# A step whose output is what the reader came for.
live_step() { # live_step TITLE LOGNAME COMMAND...
  enter_step "$1" "$2"
  say "$title"
  run_in_group "" "${@:3}"
  if ((step_status != 0)); then
    complain "$title: failed with exit code $step_status after $(step_took)"
    say_what_is_kept
    exit "$step_status"
  fi
  say "      done ($(step_took))"
}

# A command of a few seconds between two steps. It leaves no line on the screen. Sets `step_status`.
aside() { # aside TITLE LOGNAME COMMAND...
  title="      $1"
  log=$log_dir/$2.log
  step_started=$SECONDS
  if [[ -t 1 ]]; then start_ticker; fi
  run_in_group "$log" "${@:3}"
  stop_ticker
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
}

enter_step() { # enter_step TITLE LOGNAME
  step_number=$((step_number + 1))
  title="[$step_number/$step_count] $1" # "[2/5] build dtrun"
  log=$log_dir/$step_number-$2.log
  step_started=$SECONDS
}

step_took() { duration $((SECONDS - step_started)); }

# Runs the command as a script of its own under `set -e`, in a group that `interrupted` ends as a whole, and sets
# `step_status`. (`command || status=$?` would switch `set -e` off inside it.)
run_in_group() { # run_in_group LOG-OR-NOTHING COMMAND...
  set +e -m
  (
    if [[ -n $1 ]]; then exec >"$1" 2>&1; fi
    shift
    set -e
    "$@"
  ) </dev/null &
  step_group=$!
  set +m
  wait "$step_group"
  step_status=$?
  set -e
  step_group=
}

# Ends what runs now: asks as Ctrl-C would, so that each program cleans up, then insists.
interrupted() { # interrupted EXIT-STATUS
  local signal
  trap '' INT TERM HUP
  stop_ticker
  if [[ -n $step_group ]]; then
    for signal in INT TERM KILL; do
      kill "-$signal" -- "-$step_group" 2>/dev/null || break
      if group_ends_within 50; then break; fi
    done
  fi
  printf '\n'
  if ((step_number == 0)); then
    complain "$(basename "$0"): interrupted before the first step"
  else
    complain "$(basename "$0"): interrupted in step $step_number of $step_count"
  fi
  say_what_is_kept
  exit "$1"
}

group_ends_within() { # group_ends_within TENTHS-OF-A-SECOND
  local i
  for ((i = 0; i < $1; i++)); do
    kill -0 -- "-$step_group" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}

start_ticker() {
  if [[ -t 1 ]]; then
    tick &
    ticker=$!
  else
    printf '%s ... ' "$title"
  fi
}

tick() {
  while :; do
    printf '\r\033[K%s ... %s' "$title" "$(step_took)"
    sleep 1
  done
}

stop_ticker() {
  if [[ -z $ticker ]]; then return; fi
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  ticker=
  printf '\r\033[K%s ... ' "$title"
}

step_failed() {
  complain "The last lines of $log:"
  tail -n 25 "$log" | indent >&2
  say_what_is_kept
  exit "$step_status"
}

say_what_is_kept() {
  complain "Run scripts/$(basename "$0") again to go on from here: what is done already is not done again."
}

# shellcheck shell=bash
# What all scripts share: where the repository is, how they speak, and the two flags they all take.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# Exit codes are those of dtrun itself: 2 says that the call, or the machine as it is, cannot work.
exit_usage=2

say() { printf '%s\n' "$*"; }
complain() { printf '%s\n' "$*" >&2; }

die() { # die STATUS MESSAGE
  complain "$(basename "$0"): $2"
  exit "$1"
}

# A person is asked only when there is one, and was not told beforehand to be quiet (--yes, CI=true).
assume_yes=false
may_install=true
if [[ ${CI:-} == true ]]; then assume_yes=true; fi
has_terminal() { [[ -t 0 && -t 1 ]]; }

# Takes a flag that all scripts know; false for any other.
common_flag() {
  case $1 in
    --yes) assume_yes=true ;;
    --no-install) may_install=false ;;
    *) return 1 ;;
  esac
}

common_flags_help="  --yes          ask nothing (as with CI=true)
  --no-install   install no packages: if one is missing, name it and exit with 2"

bold() { if [[ -t 1 ]]; then printf '\033[1m%s\033[0m\n' "$*"; else say "$*"; fi; }
indent() { sed 's/^/    /'; }

duration() { # duration SECONDS: "8 s", "2 min 05 s"
  if (($1 < 60)); then printf '%d s' "$1"; else printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); fi
}

# shellcheck shell=bash
# Which of the packages in scripts/packages.txt are missing, what installing them means, and doing it.
# Needs common.sh and steps.sh.

packages_file=$repo/scripts/packages.txt
data_set_source="the data set is Fashion-MNIST by zalandoresearch (github.com/zalandoresearch/fashion-mnist): put
  train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz
  into one folder and pass it with --data-dir FOLDER"

package_rows() { # package_rows GROUP...: the rows of these groups
  awk -v groups=" $* " '!/^#/ && NF && index(groups, " " $2 " ")' "$packages_file"
}

has_apt() { command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; }

probe_finds() { # probe_finds KIND:WHAT
  local what=${1#*:}
  case $1 in
    command:*) command -v "$what" >/dev/null ;;
    header:*) echo "#include <$what>" | g++ -E -x c++ - >/dev/null 2>&1 ;;
    file:*) [[ -e $what ]] ;;
    *) die 70 "scripts/packages.txt: '$1' is no probe; expected command:, header: or file:" ;;
  esac
}

package_is_there() { # package_is_there NAME PROBE
  if has_apt; then
    [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == "install ok installed" ]]
  else
    probe_finds "$2"
  fi
}

missing_packages() { # missing_packages GROUP...
  local name probe
  while read -r name _ probe _; do
    # A folder of one's own stands in for the packaged data set.
    if [[ $probe == file:* && -n ${own_data_dir:-} ]]; then continue; fi
    package_is_there "$name" "$probe" || echo "$name"
  done < <(package_rows "$@")
}

list_packages() { # list_packages NAME...: each with what it is for
  local name
  for name in "$@"; do
    awk -v name="$name" '$1 == name { sub(/^[^ ]+ +[^ ]+ +[^ ]+ +/, ""); printf "  %-22s %s\n", name, $0 }' "$packages_file"
  done
}

# apt's own figures: "213 MB to download, 689 MB on disk". They need package lists, which a bare container lacks.
install_size() { # install_size NAME...
  local plan get disk
  plan=$(LC_ALL=C apt-get install --assume-no --no-install-recommends -o Debug::NoLocking=1 "$@" 2>/dev/null) || true
  get=$(sed -n 's/^Need to get \([^/]*[kMG]\{0,1\}B\)\(\/.*\)\{0,1\} of archives.*/\1/p' <<<"$plan")
  disk=$(sed -n 's/^After this operation, \(.*\) of additional disk space.*/\1/p' <<<"$plan")
  if [[ -n $disk ]]; then
    echo "${get:-0 B} to download, $disk on disk"
  else
    echo "about 320 MB to download, 960 MB on disk on a bare Debian 12; apt has no package lists yet to say it exactly"
  fi
}

as_root() { if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi; }

apt_install() { # apt_install NAME...
  # An interrupted earlier run leaves packages unpacked; apt refuses to go on until they are configured.
  as_root dpkg --configure -a
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

refuse_to_install() { # refuse_to_install REASON NAME...: the list, and exit
  local reason=$1
  shift
  complain "$(basename "$0"): $reason. Missing:"
  list_packages "$@" >&2
  if has_apt; then
    complain "Install them with:  apt-get install --no-install-recommends $*"
  else
    complain "(Debian's names; your system may have others)"
  fi
  if [[ " $* " == *" dataset-"* ]] || ! has_apt; then complain "Without the package: $data_set_source."; fi
  exit "$exit_usage"
}

# Exits with 2 and the list where packages are missing and may or can not be installed; asks where a person is there.
# Sets `missing` to what the packages step has to install.
settle_packages() { # settle_packages GROUP...
  local answer
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then return; fi
  if ! has_apt; then refuse_to_install "this system has no apt, so nothing can be installed here" "${missing[@]}"; fi
  if ! $may_install; then refuse_to_install "packages are missing, and --no-install was given" "${missing[@]}"; fi
  if [[ $(id -u) != 0 ]] && ! command -v sudo >/dev/null; then
    refuse_to_install "packages are missing, and installing them takes root or sudo" "${missing[@]}"
  fi
  say "It installs these Debian packages with apt-get ($(install_size "${missing[@]}")):"
  list_packages "${missing[@]}"
  if $assume_yes; then return; fi
  if ! has_terminal; then
    refuse_to_install "packages are missing, and there is no terminal to ask at (--yes installs them)" "${missing[@]}"
  fi
  read -r -p "Go on? [Y/n] " answer
  if [[ ${answer:-y} != [Yy]* ]]; then refuse_to_install "nothing was installed" "${missing[@]}"; fi
}

# The step itself; what settle_packages found is installed without another question.
packages_step() {
  if ((${#missing[@]} == 0)); then
    step "Debian packages: all there" packages true
  elif [[ $(id -u) == 0 ]]; then
    step "Debian packages" packages apt_install "${missing[@]}"
  else
    unlock_sudo
    # A process of root's cannot be ended from here: it stays in the terminal's group, where Ctrl-C reaches it.
    foreground_step "Debian packages" packages apt_install "${missing[@]}"
  fi
}

# sudo asks for its password here, at the terminal, and not from within a step whose output goes to a log.
unlock_sudo() {
  if $assume_yes; then
    sudo -n true 2>/dev/null || refuse_to_install "packages are missing, and sudo wants a password" "${missing[@]}"
  else
    sudo -v
  fi
}

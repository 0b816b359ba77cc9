# shellcheck shell=bash
# Taking the README apart: its fenced blocks by language, its commands, and what is known about each command.

# The lines of all ```LANGUAGE blocks, each block followed by a line of one form feed.
readme_blocks() { # readme_blocks FILE LANGUAGE
  awk -v fence="\`\`\`$2" '
    inside && /^```[ \t]*$/ { inside = 0; print "\f"; next }
    inside { print }
    !inside && $0 == fence { inside = 1 }
    END { if (inside) { print "a block is not closed" > "/dev/stderr"; exit 1 } }
  ' "$1"
}

# The commands of all ```sh blocks, one a line: without comments, blank lines and prompts, continued lines joined.
readme_commands() { # readme_commands FILE
  readme_blocks "$1" sh |
    sed -e ':join; /\\$/ { N; s/ *\\\n */ /; b join; }' |
    sed -e 's/^\$ //; s/[ \t][ \t]*#.*$//; /^[ \t]*#/d; /^[ \t\f]*$/d; s/[ \t]*$//'
}

# How each command of the README is run, the first pattern that fits the whole line:
#   given   it has happened when this runs         run     as it stands
#   short   with a few steps of training           others  what checks it instead: it takes other machines or packages
readme_table='
given   git clone [^ ]+( [^ ]+)?
given   cd dtrun
given   (\./)?scripts/test( --yes)?( --full)?
run     (\./)?scripts/quickstart( --yes)?
run     (\./)?scripts/install [^ ]+
run     cd [^ ]+
run     export PATH=.*
run     (dist/bin/)?dtrun --(help|version)
run     c\+\+ .* -o [^ ]+
run     dtrun -np [0-9]+ sgd
short   ([^ ]*/)?dtrun -np [0-9]+ ([^ ]*/)?cnn_fmnist( .*)?
short   ([^ ]*/)?dtrun -np [0-9]+ (\./)?bazel-bin/[^ ]+( .*)?
others  ([^ ]*/)?dtrun -np [0-9]+ -H .*
'

# How COMMAND is run; nothing when the table does not know it.
how_to_run() { # how_to_run COMMAND
  local how pattern
  while read -r how pattern; do
    if [[ -n $how && $1 =~ ^($pattern)$ ]]; then
      echo "$how"
      return
    fi
  done <<<"$readme_table"
}

# The same training, two small steps of it.
shortened() { # shortened COMMAND
  if [[ $1 != *cnn_fmnist* ]]; then
    echo "$1"
    return
  fi
  echo "$(sed -E 's/ --(epochs|max-steps|batch-size)[ =][^ ]+//g' <<<"$1") --epochs 1 --max-steps 2 --batch-size 64"
}

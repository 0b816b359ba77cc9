#!/usr/bin/env python3
"""Writes compile_commands.json, from which clangd and clang-tidy know how each file is compiled.

Asks Bazel for its compile actions (`bazel aquery`); nothing is built. Headers that a build generates are found only after that
build. Flags that GCC has and Clang lacks are left out.
"""

import argparse
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# With the number of words that follow each.
LEFT_OUT = {"-MD": 0, "-MF": 1, "-o": 1, "-Werror": 0, "-fno-canonical-system-headers": 0, "-Wno-free-nonheap-object": 0,
            "-Wunused-but-set-parameter": 0, "-fno-semantic-interposition": 0, "-std=c++0x": 0, "-Wno-error=cpp": 0}
LEFT_OUT_PREFIXES = ("-frandom-seed=", "--param=")

# Bazel's copies of the public headers; the headers themselves are in include/.
VIRTUAL_INCLUDES = re.compile(r"bazel-out/[^/]+/bin/include/dtrun/_virtual_includes/[^/]+$")


def bazel(*words):
    """The output of a command of Bazel's."""
    command = ["bazel", *words]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"compile_commands.py: bazel {words[0]} ended with code {result.returncode}; expected 0")
    return result.stdout


def without_left_out(arguments):
    """The words of a command that Clang knows."""
    kept, skipped = [], 0
    for word in arguments:
        if skipped > 0:
            skipped -= 1
        elif word in LEFT_OUT:
            skipped = LEFT_OUT[word]
        elif not word.startswith(LEFT_OUT_PREFIXES):
            kept.append(word)
    return kept


def with_place(word, execution_root):
    """A path of Bazel's execution root, as seen from the root of the repository."""
    flag = re.match(r"(-I|-isystem|-iquote)?(.*)$", word)
    prefix, path = flag.group(1) or "", flag.group(2)
    if VIRTUAL_INCLUDES.match(path):
        return prefix + "include"
    if path.startswith("bazel-out/"):
        return prefix + os.path.join(execution_root, path)
    if path.startswith("external/"):  # beside the execution root, which has them only while something is built
        return prefix + os.path.join(os.path.dirname(os.path.dirname(execution_root)), path)
    return word


def entry_of(arguments, execution_root):
    """What compile_commands.json says of one compile action; nothing if the action compiles no source file."""
    source = arguments[arguments.index("-c") + 1] if "-c" in arguments else ""
    if not source.endswith((".cc", ".c")) or source.startswith(("bazel-out/", "external/")):
        return None
    words = [with_place(word, execution_root) for word in without_left_out(arguments)]
    return {"directory": ROOT, "file": source, "arguments": words}


def entries_of(actions, execution_root):
    """One entry for each source file, the first that Bazel names."""
    entries = {}
    for action in actions:
        entry = entry_of(action.get("arguments", []), execution_root)
        if entry is not None:
            entries.setdefault(entry["file"], entry)
    return [entries[file] for file in sorted(entries)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="?", default="//...", help="whose sources (default: //...)")
    targets = parser.parse_args().targets
    query = f'mnemonic("CppCompile", {targets})'
    found = bazel("aquery", "--config=separate", "--output=jsonproto", "--noinclude_artifacts", query)
    actions = json.loads(found).get("actions", [])
    entries = entries_of(actions, bazel("info", "execution_root").strip())
    with open(os.path.join(ROOT, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1)
    print(f"compile_commands.json: {len(entries)} files")


if __name__ == "__main__":
    main()

"""A test of scripts: NAME.sh, which tells stories (stories.sh) about a copy of //scripts.

It needs one core (tag "one_core"): scripts/test runs as many of them at a time as there are cores.
"""

def story_test(name, size = "medium", data = [], tags = []):
    native.sh_test(
        name = name,
        size = size,
        srcs = [name + ".sh"],
        data = data + [
            "//scripts",
            "//tests/scripts:stories.sh",
        ],
        tags = tags + ["one_core"],
    )

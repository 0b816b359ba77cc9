"""A test of scripts: NAME.sh, or several `stories`, which tell stories (stories.sh) about a copy of //scripts."""

load("@rules_cc//cc:defs.bzl", "weighed")

def story_test(name, stories = None, size = "medium", data = [], tags = []):
    native.sh_test(
        name = name,
        size = size,
        srcs = [name + ".sh"] if stories == None else ["//tests/scripts:run_stories.sh"],
        args = ["$(rootpath %s)" % story for story in stories or []],
        data = data + (stories or []) + [
            "//scripts",
            "//tests/scripts:stories.sh",
        ],
        tags = weighed(tags),
    )

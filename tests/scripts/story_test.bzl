"""A test of scripts: NAME.sh, which tells stories (stories.sh) about a copy of //scripts."""

def story_test(name):
    native.sh_test(
        name = name,
        size = "medium",
        srcs = [name + ".sh"],
        data = [
            "stories.sh",
            "//scripts",
        ],
    )

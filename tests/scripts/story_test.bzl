"""A test of scripts: NAME.sh, which tells stories (stories.sh) about a copy of //scripts."""

def story_test(name, size = "medium", data = [], tags = []):
    native.sh_test(
        name = name,
        size = size,
        srcs = [name + ".sh"],
        data = data + [
            "//scripts",
            "//tests/scripts:stories.sh",
        ],
        tags = tags,
    )

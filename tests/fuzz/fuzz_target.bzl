"""One target of tests/fuzz: a program that libFuzzer runs with --config=fuzz, and else a test that replays the kept inputs."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def fuzz_target(name, deps):
    corpus = native.glob(["corpus/" + name + "/*"])
    cc_test(
        name = name,
        size = "small",
        srcs = [name + ".cc"],
        args = ["$(rootpath %s)" % file for file in corpus],
        data = corpus,
        linkstatic = True,  # symbols are hidden, so that test programs cannot link to shared libraries of them
        deps = deps + [":refused"] + select({
            ":libfuzzer": [],
            "//conditions:default": [":replay"],
        }),
    )

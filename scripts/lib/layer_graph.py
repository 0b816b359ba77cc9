"""Answers questions of scripts/check_layers about Bazel's graph: one a line, each answer ends with an empty line.

path FROM TO       a shortest path from a target of FROM to one of TO, a label a line; nothing if there is none
leaves FROM        "TARGET LABEL" for each rule LABEL outside FROM on which a target of FROM depends
users REPOSITORY   the rules outside REPOSITORY that depend on one of its targets
edges PLACE        "TARGET LABEL" for each dependency from PLACE to PLACE

A place is a folder ("ops/mpi"), a target ("//runtime:dtrun") or a repository ("@onednn"). Dependencies are direct ones, but
for `path`. The arguments are two answers of Bazel: the graph (--output=graph --nograph:factored), and the labels of all rules
but those of config_setting.
"""

import collections
import pathlib
import re
import sys


def read_graph(file):
    edges = collections.defaultdict(list)
    labels = set()
    for line in pathlib.Path(file).read_text().splitlines():
        found = re.match(r'^  "([^"]+)"(?: -> "([^"]+)")?', line)
        if not found:
            continue
        labels.update(label for label in found.groups() if label)
        if found[2]:
            edges[found[1]].append(found[2])
    return labels, edges


def is_in(label, place):
    if place.startswith("//"):
        return label == place
    if place.startswith("@"):
        return label.startswith(place + "//")
    return label.startswith(("//" + place + ":", "//" + place + "/"))


# Breadth first, so that the path is a shortest one.
def path(labels, edges, start, goal):
    before = {label: None for label in sorted(labels) if is_in(label, start)}
    if not before:
        sys.exit(f"check_layers: {start} has no targets")
    queue = collections.deque(before)
    while queue:
        label = queue.popleft()
        if is_in(label, goal):
            found = [label]
            while before[found[0]] is not None:
                found.insert(0, before[found[0]])
            return found
        for used in sorted(edges[label]):
            if used not in before:
                before[used] = label
                queue.append(used)
    return []


def main():
    labels, edges = read_graph(sys.argv[1])
    rules = set(pathlib.Path(sys.argv[2]).read_text().split())
    pairs = sorted({(label, used) for label in edges for used in edges[label]})
    for line in sys.stdin:
        question, here, *goal = line.split()
        if question == "path":
            answer = path(labels, edges, here, *goal)
        elif question == "leaves":
            answer = [f"{a} {b}" for a, b in pairs if is_in(a, here) and not is_in(b, here) and b in rules]
        elif question == "users":
            answer = sorted({a for a, b in pairs if is_in(b, here) and not is_in(a, here) and a in rules})
        else:
            answer = [f"{a} {b}" for a, b in pairs if is_in(a, here) and is_in(b, here)]
        print(*answer, "", sep="\n", flush=True)


main()

"""Hooks of mkdocs.yml: the navigation, links that leave docs/, and the source files that pages link to."""

import os
import re
import sys
import tempfile

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link

sys.path.insert(0, os.path.dirname(__file__))
import messages  # noqa: E402

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".c": "c", ".py": "python"}
FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)  # "```sh hosts": the second word is for the tests of pages
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")

INDEX = "pages.md"  # of docs/index.md in the site, whose index.html is the README
MESSAGES = "reference/messages.md"

linked_sources = set()  # paths in the repository


def on_config(config):
    config["nav"] = nav_of(read("docs/index.md"))
    return config


def nav_of(index):
    """Sections and pages in the order of the index: "## Start" is a section, "- [Title](page.md): ..." a page."""
    nav = [{"Home": "README.md"}]
    for line in index.splitlines():
        if line.startswith("## "):
            nav.append({line[3:]: []})
        elif found := re.match(r"- \[(.*?)\]\((.*?)\)", line):
            section = nav[-1]
            section[next(iter(section))].append({found[1]: found[2]})
    next(section for section in nav if "Reference" in section)["Reference"].append({"Messages": MESSAGES})
    project = [{"All pages": INDEX}, {"Contributing": "CONTRIBUTING.md"}, {"Changes": "CHANGELOG.md"},
               {"Reporting a vulnerability": "SECURITY.md"}]
    return nav + [{"Project": project}]


def on_nav(nav, config, files):
    nav.items.append(Link("API", "api/index.html"))  # Doxygen's
    return nav


def on_files(files, config):
    files = Files([f for f in files if f.src_uri != "index.md" and not f.src_uri.endswith((".bazel", ".txt"))])
    generated = tempfile.mkdtemp(prefix="dtrun-docs-")
    write(os.path.join(generated, INDEX), read("docs/index.md"))
    write(os.path.join(generated, MESSAGES), messages.page(REPOSITORY))
    for page in (INDEX, MESSAGES):
        files.append(File(page, generated, config["site_dir"], False))
    for name in ROOT_PAGES:
        files.append(File(name, REPOSITORY, config["site_dir"], False))
    for page in list(files.documentation_pages()):
        folder = repository_folder(page)
        for _, target, _ in LINK.findall(open(page.abs_src_path, encoding="utf-8").read()):
            path = os.path.normpath(os.path.join(folder, target))
            if is_source(path) and path not in linked_sources:
                linked_sources.add(path)
                write_source_page(path, generated)
                files.append(File(source_page(path), generated, config["site_dir"], False))
    return files


def on_page_markdown(markdown, page, config, files):
    markdown = FENCE.sub(r"\1", markdown)
    if page.file.src_uri.startswith("source/") or page.file.src_uri == MESSAGES:
        return markdown
    folder = repository_folder(page.file)

    def replace(found):
        path = os.path.normpath(os.path.join(folder, found[2]))
        here = os.path.dirname(page.file.src_uri)
        if path in linked_sources:
            target = source_page(path)
        elif path in ROOT_PAGES:
            target = path
        elif path.startswith("docs/"):
            target = INDEX if path == "docs/index.md" else path[len("docs/"):]
        else:
            return found[0]
        return found[1] + os.path.relpath(target, here or ".") + found[3]

    return LINK.sub(replace, markdown)


def repository_folder(file):
    if file.src_uri == INDEX:
        return "docs"
    return os.path.dirname(os.path.relpath(file.abs_src_path, REPOSITORY))


def is_source(path):
    is_page = path.startswith("docs/") or path in ROOT_PAGES
    return not path.startswith("..") and not is_page and os.path.isfile(os.path.join(REPOSITORY, path))


def source_page(path):
    return f"source/{path}.md"


def write_source_page(path, folder):
    page = os.path.join(folder, source_page(path))
    language = LANGUAGES.get(os.path.splitext(path)[1], "text")
    code = "".join("    " + line for line in read(path).splitlines(keepends=True))
    write(page, f"# {path}\n\n    :::{language}\n{code}\n")


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def read(path):
    with open(os.path.join(REPOSITORY, path), encoding="utf-8") as file:
        return file.read()

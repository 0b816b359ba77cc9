"""check_links.py SITE: each link, picture, style and script of a page leads to a file and an anchor within SITE; pages load
nothing from the network. Names what does not, one line each, and exits with 1."""

import os
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src")}


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links = []  # (tag, attribute, address)
        self.anchors = set()
        with open(path, encoding="utf-8", errors="replace") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif value and (name == "href" or (tag, name) in LOADED):
                self.links.append((tag, name, value))


def problem_of(page, tag, name, address, pages):
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        is_loaded = (tag, name) in LOADED and parts.scheme not in ("data", "javascript")
        return f"{address}: is loaded from the network" if is_loaded else None
    path = page
    if parts.path:
        path = os.path.normpath(os.path.join(os.path.dirname(page), unquote(parts.path)))
    if os.path.isdir(path):
        path = os.path.join(path, "index.html")
    if not os.path.exists(path):
        return f"{address}: leads to no file"
    anchor = unquote(parts.fragment)
    # Doxygen's summaries link to sections that it leaves out if they are empty.
    is_summary = path == page and os.path.basename(os.path.dirname(page)) == "api"
    if anchor and path in pages and anchor not in pages[path].anchors and not is_summary:
        return f"{address}: the page has no such heading"
    return None


def main(site):
    pages = {}
    for folder, _, names in os.walk(site):
        for name in names:
            if name.endswith(".html"):
                path = os.path.join(folder, name)
                pages[path] = Page(path)
    problems = {
        f"{os.path.relpath(path, site)}: {problem}"
        for path, page in pages.items()
        for link in page.links
        if (problem := problem_of(path, *link, pages))
    }
    print("\n".join(sorted(problems)))
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(problems)} dead")
    return 1 if problems or not pages else 0


if __name__ == "__main__":
    sys.exit(main(os.path.realpath(sys.argv[1])))

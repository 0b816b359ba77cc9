"""The messages in the source, as a page: the literals of each call that says or throws one, with {expressions} between."""

import os
import re

FOLDERS = {
    "launcher": "The launcher",
    "include": "The C++ headers",
    "runtime": "The library",
    "ops": "Collectives",
    "gpu": "GPUs",
    "base": "Options and environment variables",
    "models": "The training library and its programs",
}
CALL = re.compile(
    r"\b(?:Say|Complain|Report|Warn|Refuse\w*|Fail\w*|Throw\w*|(?:Launch|Usage|Agreed|Unusable\w*)?Error)\s*\(|\bthrow Error\s*\("
)
WORDS = re.compile(r"[a-z]{2,}.*[ :]")  # what is no message: names, keys, formats


def page(root):
    lines = ["# Messages", "", "The messages of dtrun, from its source. Braces stand for values.", ""]
    for folder, title in FOLDERS.items():
        found = messages_below(root, folder)
        lines += [f"## {title}", "", "| message | source |", "|---|---|"]
        lines += [f"| {cell(message)} | `{source}` |" for message, source in sorted(found.items(), key=lambda item: item[1])]
        lines.append("")
    return "\n".join(lines)


def messages_below(root, folder):
    found = {}
    for here, _, names in os.walk(os.path.join(root, folder)):
        for name in names:
            if name.endswith((".cc", ".h")):
                path = os.path.join(here, name)
                with open(path, encoding="utf-8") as file:
                    for message in messages_in(file.read()):
                        found.setdefault(message, os.path.relpath(path, root))
    return found


def messages_in(source):
    for call in CALL.finditer(source):
        arguments = inside(source, call.end() - 1)
        message = text_of(arguments)
        if message and WORDS.search(message):
            yield message


def inside(source, opening):
    """The text between the parenthesis at `opening` and the one that closes it."""
    depth, i = 0, opening
    while i < len(source):
        if source[i] == '"':
            i = end_of_literal(source, i)
            continue
        if source.startswith("//", i):
            i = source.find("\n", i)
            continue
        depth += {"(": 1, ")": -1}.get(source[i], 0)
        if depth == 0:
            return source[opening + 1:i]
        i += 1
    return ""


def end_of_literal(source, i):
    i += 1
    while i < len(source) and source[i] != '"':
        i += 2 if source[i] == "\\" else 1
    return i + 1


def text_of(arguments):
    """Literals as they are; expressions between two of them as {their last name}. "" without a literal."""
    parts, i, between = [], 0, ""
    while i < len(arguments):
        if arguments[i] == '"':
            end = end_of_literal(arguments, i)
            add_expression(parts, between)
            parts.append(arguments[i + 1:end - 1].replace('\\"', '"').replace("\\n", " ").replace("\\\\", "\\"))
            i, between = end, ""
        else:
            between += arguments[i]
            i += 1
    if not parts:
        return ""
    add_expression(parts, between)
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def add_expression(parts, code):
    code = re.sub(r"//[^\n]*", "", code)
    code = re.sub(r"(?s).*\bText\(", "", code)
    code = re.sub(r"\b(?:\w+::)*(?:Exit|Error)Code::k\w+", "", code)
    if parts and code.strip() == ":":  # of a conditional expression
        parts.append("/")
        return
    if code.strip(" \n\t,()+;{}") == "" or (not parts and "," not in code and "+" not in code):
        return
    values = [part for part in re.split(r"\s*[,+?:]\s*", code.strip(" \n\t,+()")) if part]
    names = [re.findall(r"[A-Za-z_]\w*", value) for value in values]
    words = [name[-1].rstrip("_") for name in names if name and not name[0].startswith("k")]
    if words:
        parts.append("{" + words[-1 if not parts else 0] + "}")


def cell(message):
    return message.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")

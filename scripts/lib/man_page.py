"""man_page.py PROGRAM HELP-OPTION SECTIONS EXIT-CODES >PAGE: a manual page (section 1) from the help of PROGRAM.

PROGRAM's help gives synopsis and options. The file SECTIONS gives all other sections: a line "# TITLE" begins a section, and
an indented line is an example. The line "@exit-codes" stands for the rows of the table in EXIT-CODES (docs/reference) whose
source is PROGRAM.
"""

import re
import subprocess
import sys

OPTION = re.compile(r"^  (-\S.*?)(?:  +(\S.*))?$")


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def sections_of(path):
    title, sections = None, {}
    with open(path, encoding="utf-8") as file:
        for line in file.read().splitlines():
            if line.startswith("# "):
                title = line[2:]
                sections[title] = []
            elif title:
                sections[title].append(line)
    return sections


def body(lines, codes=()):
    out = []
    for line in lines:
        if line == "@exit-codes":
            for code, meaning in codes:
                out += [".TP", ".B " + escape(code), escape(meaning)]
        elif line.startswith("    "):
            out += [".PP", ".EX", escape(line), ".EE"]
        else:
            out.append(escape(line) if line else ".PP")
    return out


def exit_codes(page, name):
    """Rows (code, meaning) of the table "| code | source | look at |" that are about the program or about any program."""
    rows = []
    with open(page, encoding="utf-8") as file:
        table = [line for line in file if re.match(r"^\| ([0-9]|any)", line)]
    for line in table:
        code, source, hint = (plain(cell) for cell in line.strip().strip("|").split("|"))
        programs = set(re.findall(r"`(\w+)`", line.split("|")[2])) | ({"dtrun"} if "dtrun" in source else set())
        if name == "dtrun" and programs and programs != {"dtrun"} and "dtrun" not in programs:
            continue
        if name != "dtrun" and name not in programs and code not in ("0", "2"):
            continue
        rows.append((code, f"{source}. {hint[:1].upper()}{hint[1:]}".strip().rstrip(".") + "."))
    if not rows:
        sys.exit(f"man_page.py: {page}: found no row for {name}; expected a table of exit codes")
    return rows


def plain(cell):
    """Without Markdown: a link to the page debugging-a-hang.md is: the page "debugging a hang"."""
    cell = re.sub(r"\[([^\]]*)\.md\]\([^)]*\)", lambda found: f'the page "{found[1].replace("-", " ")}"', cell)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").strip()


def options_of(help_text):
    """The options of the help under their headings, up to the text that follows them."""
    out, groups, in_option, in_options = [], 0, False, False
    for line in help_text.splitlines():
        if found := re.match(r"^([A-Z].*):$", line):
            out += [".SS " + escape(found[1])]
            groups, in_option, in_options = groups + 1, False, True
        elif in_options and (found := OPTION.match(line)):
            out += [".TP", ".B " + escape(re.sub(r",(?=-)", ", ", found[1]))]
            out += [escape(found[2])] if found[2] else []
            in_option = True
        elif in_option and line.startswith("      "):
            out.append(escape(line.strip()))
        elif line and in_options and not line.startswith(" "):
            break
    if groups == 0 or not any(line == ".TP" for line in out):
        sys.exit("man_page.py: the help lists no options; expected lines such as '  --name VALUE  meaning'")
    return out


def synopsis_of(help_text):
    """"Usage: dtrun ..." and the indented lines after it, without the remark behind two spaces."""
    found = re.search(r"^Usage: (.*(?:\n       .*)*)", help_text, re.M)
    lines = [re.split(r"\s{2,}", line.strip())[0] for line in found[1].splitlines()]
    return [part for line in lines for part in (".B " + escape(line), ".br")][:-1]


def main(program, help_option, sections_file, codes_page):
    help_text = subprocess.run([program, help_option], check=True, capture_output=True, text=True).stdout
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    name = program.rsplit("/", 1)[-1]
    sections = sections_of(sections_file)
    out = [f'.TH {name.upper()} 1 "" "dtrun {version}" "User Commands"', ".SH NAME", *body(sections.pop("NAME")), ".SH SYNOPSIS"]
    out += synopsis_of(help_text)
    out += [".SH DESCRIPTION", *body(sections.pop("DESCRIPTION")), ".SH OPTIONS", *options_of(help_text)]
    codes = exit_codes(codes_page, name)
    for title, lines in sections.items():
        out += [f".SH {title}", *body(lines, codes)]
    print("\n".join(line for line in out if line))


if __name__ == "__main__":
    main(*sys.argv[1:])

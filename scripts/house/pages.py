#!/usr/bin/env python3
"""pages.py -- check the pages: words, links, names of tests, figures.

At most 2 % of a page's sentences begin with a free relative, and no sentence has more than 50 words, or 40
in ARCHITECTURE.md and the design notes. ARCHITECTURE.md has at most 3,500 words. Each link and picture of any page leads
to a file, and to a heading of it. Each test that a table of invariants, or of docs/security.md, names exists. Each
figure of README's comparison stands in docs/benchmarks.md, and README names the oldest compiler.
Each page of docs/ opens with something to type, and README leads to it.
"""
import pathlib
import re
import subprocess
import sys

import prose

CODE = re.compile(r"^ *```.*?^ *```|^ {4}.*?$", re.DOTALL | re.MULTILINE)
ARCHITECTURE = pathlib.Path("ARCHITECTURE.md")
ARCHITECTURE_WORDS_MAX = 3500
DESIGN_SENTENCE_WORDS_MAX = 40
LINK = re.compile(r"\]\(([^)\s]+)\)")
PICTURE = re.compile(r'\b(?:src|srcset)="([^"]+)"')


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def broken_links(page):
    text = CODE.sub("", page.read_text())
    for link in LINK.findall(text) + PICTURE.findall(text):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or anchor and anchor not in anchors(target):
            yield f"{page}: link to {link}"


def faults_of_words(page, sentence_words_max):
    sentences = list(prose.sentences(CODE.sub("", page.read_text())))
    relatives = [sentence for sentence in sentences if prose.is_free_relative(sentence)]
    if 100 * len(relatives) > prose.FREE_RELATIVES_PER_CENT_MAX * len(sentences):
        yield from (f"{page}: free relative: {sentence}" for sentence in relatives)
    for sentence in sentences:
        if len(sentence.split()) > sentence_words_max:
            yield f"{page}: long: {sentence}"


def unknown_figures():
    """Figures of README's comparison that the page of benchmarks lacks."""
    known = set(re.findall(r"[\d.,]*\d", pathlib.Path("docs/benchmarks.md").read_text()))
    table = pathlib.Path("README.md").read_text().split("## Beside other servers")[1].split("##")[0]
    for row in re.findall(r"^\|.*$", table, re.MULTILINE):
        for cell in row.split("|")[2:]:
            if re.fullmatch(r"[ \d.,]*", cell):
                figures = re.findall(r"\d[\d.,]*\d|\d", cell)
                yield from (f"README.md: figure {figure}" for figure in figures if figure not in known)


def nothing_to_type(pages):
    """Pages for users without a command or code before their first heading."""
    for page in pages:
        if page.name != "glossary.md" and not CODE.search(page.read_text().split("\n## ")[0]):
            yield f"{page}: opens with nothing to type"


def not_listed(pages):
    """Pages to which README does not lead."""
    listed = {link.partition("#")[0] for link in LINK.findall(pathlib.Path("README.md").read_text())}
    yield from (f"README.md: no link to {page}" for page in pages if str(page) not in listed)


def wrong_compiler():
    """README's compiler, where it is not that of Cargo.toml."""
    version = re.search(r'^rust-version = "(.*)"$', pathlib.Path("Cargo.toml").read_text(), re.MULTILINE)[1]
    if f"Rust {version} or newer" not in pathlib.Path("README.md").read_text():
        yield f"README.md: does not say: Rust {version} or newer"


def missing_tests(pages):
    """Names in the last column of tables of invariants and of tests that no function has. Each invariant has a
    test; a link to a file of tests will do."""
    sources = [path.read_text() for path in pathlib.Path("crates").glob("**/*.rs")]
    functions = {name for text in sources for name in re.findall(r"\bfn (\w+)", text)}
    for page in pages:
        for head, rows in re.findall(r"^(\|.*)\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE):
            of_invariants = head.startswith("| invariant |")
            if not of_invariants and not head.endswith("| test |"):
                continue
            for row in rows.splitlines()[1:]:
                last = row.split("|")[-2]
                tests = re.findall(r"`(\w+_\w+)`", last)
                if of_invariants and not tests and not LINK.search(last):
                    yield f"{page}: no test: {row}"
                yield from (f"{page}: no test {name}" for name in tests if name not in functions)


def main():
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    pages = [pathlib.Path(name) for name in names if name and pathlib.Path(name).is_file()]
    faults = [fault for page in pages for fault in broken_links(page)]
    for_users = sorted(pathlib.Path("docs").glob("*.md"))
    for page in [pathlib.Path("README.md"), *for_users]:
        faults += faults_of_words(page, prose.SENTENCE_WORDS_MAX)
    faults += nothing_to_type(for_users)
    faults += not_listed(for_users)
    design = [ARCHITECTURE, *sorted(pathlib.Path("docs/design").glob("*.md"))]
    for page in design:
        faults += faults_of_words(page, DESIGN_SENTENCE_WORDS_MAX)
    words = len(ARCHITECTURE.read_text().split())
    if words > ARCHITECTURE_WORDS_MAX:
        faults.append(f"{ARCHITECTURE}: {words} words")
    faults += missing_tests([*design, pathlib.Path("docs/security.md")])
    faults += unknown_figures()
    faults += wrong_compiler()
    for fault in faults:
        print(fault)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())

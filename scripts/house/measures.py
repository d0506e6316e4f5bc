#!/usr/bin/env python3
"""measures.py [REV...] -- what can be counted of the structure, a column for each commit and the work tree.

lines          lines of all Rust files, with their tests and comments
test binaries  integration tests that cargo links one by one
rebuilt        crates, and thousand lines in them, that a line changed in that crate compiles again
duplicates     pairs of places with 12 or more equal lines of code
files of TYPE  files with methods of that type, and methods
relatives      per cent of sentences in comments that begin with a free relative
"""
import collections
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib

import prose
import rust

DUPLICATE_LINES_MIN = 12
TOUCHED = ["gluster", "cluster", "nfs", "rpc", "server", "striped"]
TYPES = ["Service", "Context", "SessionCore"]


def rust_files(root):
    return sorted(path for path in root.glob("crates/**/*.rs") if "target" not in path.parts)


def crate_of(root, path):
    return path.relative_to(root).parts[1]


def line_count(paths):
    return sum(path.read_text().count("\n") for path in paths)


def test_binaries(root):
    return len([*root.glob("crates/*/tests/*.rs"), *root.glob("crates/*/tests/*/main.rs")])


def dependencies(root):
    """Per crate: the crates that it is built on, and those that only its tests are built on."""
    built_on = {}
    for manifest in root.glob("crates/*/Cargo.toml"):
        content = tomllib.loads(manifest.read_text())
        tables = [content, *content.get("target", {}).values()]
        names = {kind: set() for kind in ("dependencies", "build-dependencies", "dev-dependencies")}
        for table in tables:
            for kind, found in names.items():
                found |= {name for name in table.get(kind, {}) if name.startswith("dafs")}
        built_on[manifest.parent.name] = (
            names["dependencies"] | names["build-dependencies"], names["dev-dependencies"])
    return built_on


def rebuilt(built_on, crate):
    """The other crates that cargo compiles again, for all targets, after a change of `crate`."""
    touched = {crate}
    while True:
        more = {name for name, (normal, _) in built_on.items() if normal & touched} - touched
        if not more:
            break
        touched |= more
    return (touched | {name for name, (_, tests) in built_on.items() if tests & touched}) - {crate}


def code_lines(path):
    """The lines of a file that hold code, as (line number, tokens in one string)."""
    lines = collections.defaultdict(list)
    for kind, piece, line in rust.pieces(path.read_text()):
        if kind == "token":
            lines[line].append(piece)
    return [(line, " ".join(lines[line])) for line in sorted(lines)]


def duplicates(root):
    files = [code_lines(path) for path in rust_files(root)]
    windows = collections.defaultdict(list)
    for number, lines in enumerate(files):
        for start in range(len(lines) - DUPLICATE_LINES_MIN + 1):
            text = "\n".join(line for _, line in lines[start:start + DUPLICATE_LINES_MIN])
            windows[text].append((number, start))
    equal = set()
    for places in windows.values():
        equal |= {(a, b) for i, a in enumerate(places) for b in places[i + 1:]}
    # A pair that continues the pair one line before it is the same duplicate.
    return len([1 for (f, i), (g, j) in equal if ((f, i - 1), (g, j - 1)) not in equal])


def methods(root, type_name):
    head = re.compile(
        rf"^impl(?:<[^{{]*?>)? {type_name}\b(?! for )([^{{]*)\{{\n(.*?)^\}}", re.MULTILINE | re.DOTALL)
    files, counts = collections.Counter(), collections.Counter()
    for path in rust_files(root):
        for block in head.finditer(path.read_text()):
            found = len(re.findall(r"^    (?:pub(?:\([a-z ]+\))? )?(?:const |async |unsafe )*fn ", block[2], re.MULTILINE))
            files[crate_of(root, path)] += 1
            counts[crate_of(root, path)] += found
    # Types of one name in several crates are different types: the one in most files counts.
    most = max(files, key=files.get, default="")
    return files[most], counts[most]


def measure(root):
    sizes = collections.Counter()
    for path in rust_files(root):
        sizes[crate_of(root, path)] += line_count([path])
    built_on = dependencies(root)
    found = {"crates": len(built_on), "lines": sum(sizes.values()), "test binaries": test_binaries(root)}
    for short in TOUCHED:
        crate = f"dafs-{short}"
        # A commit before the split has the striped store in the stores' crate.
        others = rebuilt(built_on, crate if crate in built_on else "dafs-store")
        found[f"rebuilt after {short}"] = f"{len(others)} / {sum(sizes[name] for name in others) // 1000}k"
    found["duplicates"] = duplicates(root)
    for name in TYPES:
        found[f"files of {name}"] = "{} ({} methods)".format(*methods(root, name))
    found["words of ARCHITECTURE.md"] = len((root / "ARCHITECTURE.md").read_text().split())
    for crate, (relatives, of) in prose.shares(root).items():
        found[f"relatives {crate}"] = f"{100 * relatives / of:.1f}"
    return found


def main():
    columns = []
    for rev in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(["git", "archive", rev], check=True, capture_output=True).stdout
            tarfile.open(fileobj=io.BytesIO(archive)).extractall(folder, filter="data")
            columns.append((rev, measure(pathlib.Path(folder))))
    columns.append(("work tree", measure(pathlib.Path("."))))
    rows = list(dict.fromkeys(row for _, column in columns for row in column))
    print(f"| {'':<28} | " + " | ".join(f"{rev:>18}" for rev, _ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for row in rows:
        print(f"| {row:<28} | " + " | ".join(f"{column.get(row, ''):>18}" for _, column in columns) + " |")


if __name__ == "__main__":
    main()

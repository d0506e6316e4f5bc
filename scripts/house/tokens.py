#!/usr/bin/env python3
"""tokens.py BEFORE [AFTER] -- show that the Rust files that differ between two commits differ in comments alone.

AFTER is the work tree unless given. Prints each file whose tokens differ, with the first of them.
"""
import pathlib
import subprocess
import sys

import rust


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    before, after = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else None
    names = git("diff", "--no-renames", "--name-only", before, *([after] if after else []), "--", "*.rs").split()
    bad = 0
    for name in names:
        try:
            old = rust.tokens(git("show", f"{before}:{name}"))
            new = rust.tokens(git("show", f"{after}:{name}") if after else pathlib.Path(name).read_text())
        except (subprocess.CalledProcessError, FileNotFoundError):
            print(f"{name}: added or removed")
            bad = 1
            continue
        if old != new:
            first = next((pair for pair in zip(old, new) if pair[0] != pair[1]), ("the end", "the end"))
            print(f"{name}: {first[0]!r} became {first[1]!r}")
            bad = 1
    print(f"{len(names)} files compared")
    return bad


if __name__ == "__main__":
    sys.exit(main())

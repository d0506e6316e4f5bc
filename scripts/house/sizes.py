"""Prints files over 600 lines and Rust functions over 70 that large.txt does not list, and what it lists in vain.

Takes the names of files from standard input, each with a null byte behind it.
"""
import pathlib
import sys

from rust import pieces

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70


def functions(text):
    """Yields (name, lines) of each function with a body."""
    tokens = [(piece, line) for kind, piece, line in pieces(text) if kind == "token"]
    # The function whose body is awaited, brackets and braces open so far, and the functions under way.
    awaited, brackets, braces, under_way = None, 0, 0, []
    for at, (piece, line) in enumerate(tokens):
        if piece == "fn" and tokens[at + 1][0].isidentifier():
            awaited, brackets = (tokens[at + 1][0], line), 0
        elif piece in "([":
            brackets += 1
        elif piece in ")]":
            brackets -= 1
        elif piece == ";" and brackets == 0:
            awaited = None
        elif piece == "{":
            if awaited and brackets == 0:
                under_way.append((*awaited, braces))
                awaited = None
            braces += 1
        elif piece == "}":
            braces -= 1
            if under_way and under_way[-1][2] == braces:
                name, begin, _ = under_way.pop()
                yield name, line - begin + 1


def main():
    listed = pathlib.Path(__file__).with_name("large.txt").read_text().splitlines()
    listed = {line for line in listed if line and not line.startswith("#")}
    large = {}
    for name in filter(None, sys.stdin.read().split("\0")):
        path = pathlib.PurePath(name)
        # Enough to tell it, and the same when its crate is renamed.
        short = "/".join(path.parts[-2:])
        text = pathlib.Path(name).read_text(errors="replace")
        lines = text.count("\n")
        if lines > FILE_LINES_MAX:
            large[short] = f"{lines} lines in {name}"
        # A short file has no long function.
        if path.suffix == ".rs" and lines > FUNCTION_LINES_MAX:
            for function, lines in functions(text):
                if lines > FUNCTION_LINES_MAX:
                    large[f"{short} {function}"] = f"{lines} lines in {name}"
    for key in sorted(large.keys() - listed):
        print(f"{key}: {large[key]}")
    for key in sorted(listed - large.keys()):
        print(f"scripts/house/large.txt: {key} is not large any more")


main()

"""The tokens and the comments of a Rust file, as far as text alone shows them.

Invariant: every character of a file is blank, or belongs to exactly one token or comment.
"""
import re

# The order matters: what may hold quotes or slashes comes before what begins with them.
_PIECES = re.compile(
    r"""(?P<line_comment>//[^\n]*)
    |(?P<block_comment>/\*)
    |(?P<raw_string>(?:b|c)?r(?P<hashes>\#*)")
    |(?P<string>(?:b|c)?"(?:[^"\\]|\\.)*")
    |(?P<character>b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\}|.))')
    |(?P<lifetime>'[A-Za-z_][A-Za-z0-9_]*)
    |(?P<word>r\#[A-Za-z_][A-Za-z0-9_]*|[A-Za-z0-9_]+)
    |(?P<sign>\S)""",
    re.VERBOSE | re.DOTALL,
)


def _end_of_block_comment(text, start):
    depth, at = 1, start
    while depth:
        edge = re.compile(r"/\*|\*/").search(text, at)
        if edge is None:
            raise ValueError("a block comment that does not end")
        depth += 1 if edge.group() == "/*" else -1
        at = edge.end()
    return at


def pieces(text):
    """Yields (kind, text, line number), with kind "comment" or "token"."""
    at, line = 0, 1
    while True:
        found = _PIECES.search(text, at)
        if found is None:
            return
        line += text.count("\n", at, found.start())
        end, kind = found.end(), found.lastgroup
        if found.group("line_comment") is not None:
            kind = "comment"
        elif found.group("block_comment") is not None:
            kind, end = "comment", _end_of_block_comment(text, found.end())
        else:
            if found.group("raw_string") is not None:
                close = '"' + found.group("hashes")
                end = text.index(close, found.end()) + len(close)
            kind = "token"
        piece = text[found.start():end]
        yield kind, piece, line
        line += piece.count("\n")
        at = end


def tokens(text):
    """The tokens of a file, without its comments and without the layout."""
    return [piece for kind, piece, _ in pieces(text) if kind == "token"]


def comments(text):
    """The comments of a file as (line number, text): neighbouring lines are one comment."""
    blocks, last = [], None
    for kind, piece, line in pieces(text):
        if kind != "comment":
            last = None
            continue
        style = re.match(r"//[/!]?|/\*+!?", piece).group()
        body = piece[len(style):].removesuffix("*/")
        if last == (style, line - 1) and style.startswith("//"):
            blocks[-1][1].append(body)
        else:
            blocks.append((line, [body]))
        last = (style, line)
    return [(line, "\n".join(body)) for line, body in blocks]

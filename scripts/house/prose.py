#!/usr/bin/env python3
"""prose.py [--list] -- measure the comments of all crates, and fail above the limits.

A sentence that begins with a free relative hides the actor: at most 2 % of a crate's sentences. No
sentence has more than 50 words, and no documentation is a single pronoun. --list prints every
place that counts, also where a crate is within its limit.
"""
import collections
import pathlib
import re
import sys

import rust

FREE_RELATIVES_PER_CENT_MAX = 2.0
SENTENCE_WORDS_MAX = 50
# Below this many sentences a share says little; such a crate may have one.
SENTENCES_MIN = 50

FREE_RELATIVE = re.compile(
    r"(Who|Whom|Whoever|Whose|What|Whatever|Which|Whichever|Whether|That|Nobody|Nothing)\b"
)
# "That file is ..." points at a noun and hides no actor.
POINTS = re.compile(r"That (?!(?:is|was|are|were|has|had|it|they|a|an|the|this|not|no|may|must|can|does)\b)[a-z]+\b")
PRONOUN = re.compile(r"(Which|It|That|This|These|Those|Them|One|Both|The same|Such)( one)?( of (it|them|that|this))?\.?$")


def sentences(comment):
    """The sentences of a comment: fenced code, list marks and links do not count as words."""
    text = re.sub(r"```.*?```", "", comment, flags=re.DOTALL)
    # A list, a heading, a table's row or an empty line ends a sentence.
    text = re.sub(r"\n\s*(?=[*\-#|] |\d+\. )", "\n\n", text)
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = re.sub(r"^\s*(?:[*\-#]+|\d+\.)\s+", "", paragraph)
        if paragraph.lstrip().startswith("|"):
            continue
        flat = re.sub(r"\s+", " ", paragraph).strip()
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\[\"(*])", flat):
            if sentence:
                yield sentence


def is_free_relative(sentence):
    head = sentence.lstrip("*_(\"")
    return bool(FREE_RELATIVE.match(head)) and not POINTS.match(head)


def places(name, text):
    """Yields (fault, place, sentence); the fault is None for a sentence without one."""
    for line, comment in rust.comments(text):
        if PRONOUN.match(comment.strip()):
            yield "pronoun", f"{name}:{line}", comment.strip()
        for sentence in sentences(comment):
            fault = None
            if len(sentence.split()) > SENTENCE_WORDS_MAX:
                fault = "long"
            elif is_free_relative(sentence):
                fault = "relative"
            yield fault, f"{name}:{line}", sentence


def crate_files(root):
    """Yields (crate, path) of all Rust files of the crates below `root`."""
    for path in sorted(root.glob("crates/**/*.rs")):
        yield path.relative_to(root).parts[1], path


def shares(root):
    """Per crate: the sentences that begin with a free relative, and all sentences."""
    counts = collections.defaultdict(lambda: [0, 0])
    for crate, path in crate_files(root):
        for fault, _, _ in places(path, path.read_text()):
            counts[crate][0] += fault == "relative"
            counts[crate][1] += fault != "pronoun"
    return dict(sorted(counts.items()))


def main():
    is_list, bad = sys.argv[1:] == ["--list"], False
    relatives, counts = collections.defaultdict(list), collections.Counter()
    for crate, path in crate_files(pathlib.Path(".")):
        for fault, place, sentence in places(path, path.read_text()):
            counts[crate] += fault != "pronoun"
            if fault == "relative":
                relatives[crate].append((place, sentence))
            elif fault:
                bad = True
                print(f"{place}: {fault}: {sentence}")
    for crate, of in sorted(counts.items()):
        share = 100 * len(relatives[crate]) / of
        is_over = len(relatives[crate]) > 1 and share > FREE_RELATIVES_PER_CENT_MAX and of >= SENTENCES_MIN
        bad |= is_over
        if is_over or is_list:
            print(f"{crate}: {share:.1f} % of {of} sentences begin with a free relative")
            for place, sentence in relatives[crate]:
                print(f"    {place}: {sentence[:100]}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""chart.py [--check] -- draw docs/figures/beside.svg, the rates of README's comparison as bars.

The bars of a row are parts of the higher rate in it. --check writes nothing and fails when the figure is out of date.

Invariant: the same table gives the same bytes.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURE = ROOT / "docs/figures/beside.svg"
TITLE = "NFSv3 over TCP, both ends on one CPU: rates per second, longer is faster"
SERVERS = ("dafs", "NFS-Ganesha 4.3")
LABEL, BAR, NUMBER, ROW, TOP, MARGIN = 190, 400, 90, 44, 62, 14
# On a light and on a dark page.
COLOURS = (("#2f6fb7", "#5a9be0"), ("#b8bec6", "#6b7480"))


def rates():
    """The rows of the table that have a rate of both servers: a label, and the two."""
    table = (ROOT / "README.md").read_text().split("## Beside other servers")[1].split("\n## ")[0]
    head, *rows = [line.strip("| ").split("|") for line in re.findall(r"^\|.*$", table, re.MULTILINE)]
    if tuple(cell.strip() for cell in head[:2]) != SERVERS:
        sys.exit(f"README.md: the table does not begin with {SERVERS}")
    for label, *cells in rows:
        label = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", label).strip().removeprefix("NFSv3 ")
        numbers = [cell.strip().replace(",", "") for cell in cells[:2]]
        if re.search(r"\bper s$", label) and all(number.isdigit() for number in numbers):
            yield re.sub(r",? per s$", "", label), [int(number) for number in numbers]


def draw(rows):
    width, height = LABEL + BAR + NUMBER + 2 * MARGIN, TOP + ROW * len(rows) + 4
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        "<style>text{fill:#1f2328}.page{fill:#ffffff}"
        + "".join(f".server{index}{{fill:{light}}}" for index, (light, _) in enumerate(COLOURS))
        + "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}"
        + "".join(f".server{index}{{fill:{dark}}}" for index, (_, dark) in enumerate(COLOURS))
        + "}</style>",
        f'<rect width="{width}" height="{height}" class="page"/>',
        f'<text x="{MARGIN}" y="22" font-size="14">{TITLE}</text>',
    ]
    for index, server in enumerate(SERVERS):
        x = MARGIN + LABEL + 90 * index
        out.append(f'<rect x="{x}" y="36" width="11" height="11" class="server{index}"/>')
        out.append(f'<text x="{x + 16}" y="46">{server}</text>')
    for number, (label, values) in enumerate(rows):
        y = TOP + ROW * number
        out.append(f'<text x="{MARGIN + LABEL - 8}" y="{y + 20}" text-anchor="end">{label}</text>')
        for index, value in enumerate(values):
            length = BAR * value / max(values)
            at = y + 15 * index
            out.append(
                f'<rect x="{MARGIN + LABEL}" y="{at}" width="{length:.1f}" height="13" class="server{index}"/>'
                f'<text x="{MARGIN + LABEL + length + 6:.1f}" y="{at + 11}">{value:,}</text>'
            )
    return "\n".join([*out, "</svg>", ""])


def main():
    figure = draw(list(rates()))
    if sys.argv[1:] != ["--check"]:
        FIGURE.write_text(figure)
    elif not FIGURE.is_file() or FIGURE.read_text() != figure:
        sys.exit(f"{FIGURE.name} is out of date: run scripts/house/chart.py")


if __name__ == "__main__":
    main()

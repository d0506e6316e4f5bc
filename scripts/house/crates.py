#!/usr/bin/env python3
"""crates.py [--check] [--to FILE] -- draw docs/figures/crates.svg, the map of the crates, from their
manifests.

An arrow leads from a crate to one that it needs. Arrows that follow from others are left out, and so are
dependencies of tests alone. --check writes nothing and fails when the figure is out of date, when a crate
has no place in it, or when a crate needs one of a layer above its own.

Invariant: the same manifests give the same bytes.
"""
import argparse
import pathlib
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURE = ROOT / "docs/figures/crates.svg"

# The layers from the top down, with a colour each on a light and on a dark page. A crate needs crates of its own layer
# and of those below.
LAYERS = {
    "proof": ("#eeeeee", "#30363d"),
    "fronts": ("#fff2cc", "#5c4d12"),
    "server": ("#f8cecc", "#6b2b2b"),
    "front ends": ("#ffd9b3", "#6b431a"),
    "state": ("#e1d5e7", "#4b3a63"),
    "client": ("#d5e8d4", "#2f5233"),
    "storage": ("#dae8fc", "#274a73"),
    "transport": ("#d0e0e3", "#24525c"),
    "ground": ("#f5f5dc", "#4a4a2f"),
}

# The layer of each crate, and where it stands: column and row. Other crates are left out.
PLACES = {
    "dafs-python": ("fronts", 0.0, 0),
    "dafs-capi": ("fronts", 1.1, 0),
    "dafs-preload": ("fronts", 2.2, 0),
    "dafs-fuse": ("fronts", 3.3, 0),
    "dafs": ("fronts", 5.0, 0),
    "dafs-testkit": ("proof", 6.4, 0),
    "dafs-testkit-rpc": ("proof", 7.5, 0),
    "dafs-sim": ("proof", 8.6, 0),
    "dafs-bench": ("proof", 9.6, 0),
    "dafs-fuzz": ("proof", 10.6, 0),
    "dafs-client": ("client", 1.0, 1),
    "dafs-nfs-client": ("client", 2.9, 1),
    "dafs-parallel": ("client", 1.7, 2),
    "dafs-server": ("server", 6.0, 1),
    "dafs-engine": ("front ends", 3.7, 2),
    "dafs-nfs": ("front ends", 4.8, 2),
    "dafs-service": ("state", 4.75, 3),
    "dafs-cluster": ("state", 5.9, 3),
    "dafs-posix": ("storage", 6.6, 2),
    "dafs-striped": ("storage", 7.6, 2),
    "dafs-cephfs": ("storage", 8.6, 2),
    "dafs-gluster": ("storage", 9.6, 2),
    "dafs-journal": ("storage", 5.6, 4),
    "dafs-store": ("storage", 7.4, 4),
    "dafs-rpc": ("transport", 3.15, 3.5),
    "dafs-dat": ("transport", 1.2, 5),
    "dafs-tls": ("transport", 8.6, 3.5),
    "dafs-wire": ("ground", 2.6, 6),
    "dafs-gss": ("ground", 4.2, 5.3),
    "dafs-sandbox": ("ground", 9.6, 6),
    "dafs-mem": ("ground", 5.0, 6),
}

# Those of the layer "proof" need what they test, which is nearly all: their arrows would hide the others.
WITHOUT_ARROWS = {"proof"}

COLUMN, ROW, LEFT, TOP = 112, 92, 16, 44
BOX_WIDTH, BOX_HEIGHT = 104, 34
UNPLACED_ROW = 7


def manifests():
    """Each crate of the workspace, with the crates of the workspace that its product needs."""
    found = {}
    for path in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        manifest = tomllib.loads(path.read_text())
        tables = [manifest, *manifest.get("target", {}).values()]
        needs = {name for table in tables for name in table.get("dependencies", {})}
        found[manifest["package"]["name"]] = needs
    return {name: sorted(needs & found.keys()) for name, needs in found.items()}


def reach(needs, crate):
    """All that a crate needs, directly or not."""
    seen, todo = set(), list(needs[crate])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(needs[name])
    return seen


def arrows(needs):
    """The dependencies that do not follow from others."""
    below = {crate: reach(needs, crate) for crate in needs}
    for crate in sorted(needs):
        for other in needs[crate]:
            if not any(other in below[between] for between in needs[crate]):
                yield crate, other


def place(crate, unplaced):
    if crate in PLACES:
        return PLACES[crate]
    return None, 1.1 * unplaced.index(crate), UNPLACED_ROW


def fill(layer):
    """The attributes of a box: the colour on a light page, and the class that a dark page changes."""
    if layer is None:
        return 'fill="#ffffff" class="page"'
    return f'fill="{LAYERS[layer][0]}" class="layer{list(LAYERS).index(layer)}"'


def dark():
    """The rules for a dark page. Viewers without them show a light one."""
    rules = [f".layer{index}{{fill:{colour}}}" for index, (_, colour) in enumerate(LAYERS.values())]
    rules += [".page{fill:#0d1117;stroke:none}", "text{fill:#e6edf3}"]
    rules += ["rect,line{stroke:#8b949e}", "marker path{fill:#8b949e}"]
    return f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"


def draw(needs):
    unplaced = sorted(needs.keys() - PLACES.keys())
    boxes = {crate: place(crate, unplaced) for crate in sorted(needs)}
    width = LEFT * 2 + int(9.6 * COLUMN) + BOX_WIDTH
    rows = UNPLACED_ROW + 1 if unplaced else UNPLACED_ROW
    height = TOP + rows * ROW + 10

    def corner(crate):
        _, column, row = boxes[crate]
        return LEFT + column * COLUMN, TOP + row * ROW

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        dark(),
        f'<rect width="{width}" height="{height}" {fill(None)}/>',
    ]
    legend = LEFT
    for layer in LAYERS:
        out.append(
            f'<rect x="{legend}" y="10" width="14" height="14" {fill(layer)} stroke="#888"/>'
            f'<text x="{legend + 19}" y="21">{layer}</text>'
        )
        legend += 44 + 7 * len(layer)
    for crate, other in arrows(needs):
        if WITHOUT_ARROWS & {PLACES.get(end, ("",))[0] for end in (crate, other)}:
            continue
        (x1, y1), (x2, y2) = corner(crate), corner(other)
        side = BOX_WIDTH / 2
        if y1 == y2:
            from_x, to_x = (x1 + BOX_WIDTH, x2) if x1 < x2 else (x1, x2 + BOX_WIDTH)
            ends = (from_x, y1 + BOX_HEIGHT / 2, to_x, y2 + BOX_HEIGHT / 2)
        elif y1 < y2:
            ends = (x1 + side, y1 + BOX_HEIGHT, x2 + side, y2)
        else:
            ends = (x1 + side, y1, x2 + side, y2 + BOX_HEIGHT)
        x1, y1, x2, y2 = (f"{end:.1f}" for end in ends)
        out.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#555" marker-end="url(#head)"/>')
    for crate, (layer, _, _) in boxes.items():
        x, y = corner(crate)
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" '
            f'{fill(layer)} stroke="#555"/>'
            f'<text x="{x + BOX_WIDTH / 2:.1f}" y="{y + 21:.1f}" text-anchor="middle">{crate}</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def faults(needs):
    """Crates without a place, and dependencies that lead up."""
    order = list(LAYERS)
    for crate in sorted(needs):
        if crate not in PLACES:
            yield f"{crate} has no place in scripts/house/crates.py"
            continue
        for other in needs[crate]:
            if other in PLACES and order.index(PLACES[other][0]) < order.index(PLACES[crate][0]):
                yield f"{crate} needs {other}, which is in a layer above it ({PLACES[other][0]})"


def main():
    parser = argparse.ArgumentParser(description="Draw the map of the crates.")
    parser.add_argument("--check", action="store_true", help="fail when the figure is not current")
    parser.add_argument("--to", type=pathlib.Path, default=FIGURE, help="where the figure goes")
    arguments = parser.parse_args()
    needs = manifests()
    figure = draw(needs)
    if not arguments.check:
        arguments.to.write_text(figure)
        return
    wrong = list(faults(needs))
    if not arguments.to.is_file() or arguments.to.read_text() != figure:
        wrong.append(f"{arguments.to.name} is out of date: run scripts/house/crates.py")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()

"""Takes the pictures of the documentation: the page of the administration port, and `dafs top`.

    pictures.py BROWSER_PORT URL TOKEN SECONDS FOLDER TOP...

The page plots SECONDS of work first. TOP is the command of `dafs top`. The files have at most 256 colours.
"""
import collections
import html
import itertools
import json
import pathlib
import struct
import sys
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).parent / "e2e"))

import page
import top

COLUMNS, ROWS = 104, 18
# Those that pictures.sh starts. Others have come and gone.
CLIENTS = 6
COLOURS_MAX = 256
EXACT_COLOURS = 64

# A screen as an element of a page.
STYLE = """body { margin: 0 } pre { display: inline-block; margin: 0; padding: 1em; background: #14181c; color: #e6eaee;
    font: 15px/1.3 "DejaVu Sans Mono", monospace } .reversed { background: #e6eaee; color: #14181c }"""


def chunks(png):
    """The name and the content of each chunk (PNG 5.3)."""
    at = 8
    while at < len(png):
        size, = struct.unpack(">I", png[at:at + 4])
        yield png[at + 4:at + 8], png[at + 8:at + 8 + size]
        at += size + 12


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def guess(kind, left, up, corner):
    """The byte from which a filter of PNG (9.2) counts, by its three neighbours."""
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    expected = left + up - corner
    return min((left, up, corner), key=lambda one: abs(expected - one))


def lines(data, step, size):
    """The bytes of each line without its filter. A pixel has `step` bytes, a line `size`."""
    before = bytes(size)
    for at in range(0, len(data), size + 1):
        kind, line = data[at], bytearray(data[at + 1:at + 1 + size])
        for x in range(size if kind else 0):
            left, corner = (line[x - step], before[x - step]) if x >= step else (0, 0)
            line[x] = (line[x] + guess(kind, left, before[x], corner)) & 255
        before = line
        yield line


def with_palette(png):
    """The picture with its most frequent colours, and the most frequent one of each kind, so that thin lines keep theirs.
    Any other becomes the nearest of them."""
    parts = list(chunks(png))
    width, height, depth, kind = struct.unpack(">IIBB", parts[0][1][:10])
    assert depth == 8 and kind in (2, 6), (depth, kind)
    step = 3 if kind == 2 else 4
    data = zlib.decompress(b"".join(content for name, content in parts if name == b"IDAT"))
    pixels = [[bytes(line[x:x + 3]) for x in range(0, width * step, step)] for line in lines(data, step, width * step)]
    counts = collections.Counter(itertools.chain.from_iterable(pixels))
    frequent = [colour for colour, _ in counts.most_common()]
    kinds = {}
    for colour in frequent:
        kinds.setdefault(tuple(part >> 4 for part in colour), colour)
    palette = list(dict.fromkeys(frequent[:EXACT_COLOURS] + list(kinds.values())))[:COLOURS_MAX]
    number = {colour: at for at, colour in enumerate(palette)}
    for colour in counts.keys() - number.keys():
        nearest = min(palette, key=lambda one: sum((a - b) ** 2 for a, b in zip(one, colour)))
        number[colour] = number[nearest]
    data = b"".join(b"\0" + bytes(number[pixel] for pixel in line) for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return png[:8] + chunk(b"IHDR", head) + chunk(b"PLTE", b"".join(palette)) + chunk(b"IDAT", zlib.compress(data, 9)) + \
        chunk(b"IEND", b"")


def as_html(cells):
    """A screen of a terminal as an element."""
    text = ""
    for y in range(ROWS):
        line = [cells.get((y, x), (" ", False, False)) for x in range(COLUMNS)]
        for (bold, is_reversed), run in itertools.groupby(line, key=lambda cell: cell[1:]):
            content = html.escape("".join(cell[0] for cell in run))
            content = f"<b>{content}</b>" if bold else content
            text += f'<span class="reversed">{content}</span>' if is_reversed else content
        text += "\n"
    return f"<style>{STYLE}</style><pre>{text.rstrip()}</pre>"


def administration(browser, url, token, seconds, folder):
    browser.call("Page.navigate", url=url)
    browser.eventually(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")
    browser.eventually("document.activeElement.id === 'token'")
    browser.call("Input.insertText", text=token)
    browser.key("Enter", 13, "\r")
    browser.eventually("document.querySelectorAll('#nodes tbody tr').length === 3")
    browser.eventually(f"document.querySelectorAll('#clients tbody tr').length >= {CLIENTS}")
    for _ in range(seconds):
        time.sleep(1)
        browser.without_faults()
        assert browser.value("document.querySelector('#state').className") == "", browser.text("#state")
    browser.value("document.activeElement.blur()")
    for name, theme, width in (("page", "light", 1280), ("page-dark", "dark", 1280), ("page-narrow", "light", 400)):
        browser.show(theme, width)
        height = browser.value("document.documentElement.scrollHeight")
        folder.joinpath(f"{name}.png").write_bytes(with_palette(browser.picture(width, height)))


def terminal(browser, command, folder):
    session = top.Session(command, COLUMNS, ROWS)
    session.wait("[clients")
    # The first intervals have no rates of clients that have just come.
    session.settle(7)
    screen = as_html(session.cells())
    session.press("q")
    session.end(0)
    browser.call("Page.navigate", url="about:blank")
    browser.eventually("location.href === 'about:blank' && document.readyState === 'complete'")
    browser.value(f"document.documentElement.innerHTML = {json.dumps(screen)}; null")
    browser.show("light", 1280)
    sizes = browser.value("""(({ width, height }) => [Math.ceil(width), Math.ceil(height)])(
        document.querySelector("pre").getBoundingClientRect())""")
    folder.joinpath("top.png").write_bytes(with_palette(browser.picture(*sizes)))


def main():
    port, url, token, seconds, folder, *command = sys.argv[1:]
    browser, folder = page.Browser(int(port)), pathlib.Path(folder)
    administration(browser, url, token, int(seconds), folder)
    terminal(browser, command, folder)


if __name__ == "__main__":
    main()

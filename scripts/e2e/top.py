#!/usr/bin/env python3
"""`dafs top` in a pseudo-terminal: top.py SERVER COMMAND... presses keys on terminals of several sizes, and checks
the screen and that the terminal is restored. At the end it ends the process SERVER, and sees the screen tell it.
"""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

# A control sequence with its numbers and its letter, another escape, or a character.
PART = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[^\[]|([^\x1b])", re.DOTALL)
RESTORED = ["\x1b[?1049l", "\x1b[?25h"]
PATIENCE_SECONDS = 20


class Session:
    """The command in a terminal of its own."""

    def __init__(self, command, columns, rows, term="xterm"):
        self.master, self.slave = os.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        self.output = ""
        environment = {name: value for name, value in os.environ.items() if name != "TERM"}
        if term is not None:
            environment["TERM"] = term
        self.process = subprocess.Popen(
            command,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys.encode())

    def read(self, seconds):
        """Takes the output that comes in this time."""
        if select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 1 << 16).decode("latin-1")

    def settle(self, seconds):
        """Takes all output of this time. A key at the moment of a resize waits for the next one."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)

    def cells(self):
        """The characters that are on the screen now, by row and column: (character, is bold, is reversed)."""
        cells, row, column, bold, reverse = {}, 0, 0, False, False
        for numbers, letter, character in PART.findall(self.output):
            if letter == "H":
                row, column = (int(number or 1) - 1 for number in (numbers or "1;1").split(";"))
            elif letter == "J":
                cells.clear()
            elif letter == "m":
                bold = {"": False, "0": False, "1": True, "22": False}.get(numbers, bold)
                reverse = {"": False, "0": False, "7": True, "27": False}.get(numbers, reverse)
            elif character == "\n":
                row += 1
            elif character == "\r":
                column = 0
            elif character:
                cells[row, column] = character, bold, reverse
                column += 1
        return cells

    def screen(self):
        """The text that is on the screen now."""
        cells = self.cells()
        rows = 1 + max((row for row, _ in cells), default=0)
        width = 1 + max((column for _, column in cells), default=0)
        blank = " ", False, False
        return "\n".join("".join(cells.get((y, x), blank)[0] for x in range(width)) for y in range(rows))

    def wait(self, text):
        """Waits until the screen has a text."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.screen():
            if time.monotonic() > deadline:
                raise SystemExit(f"no {text!r} on the screen:\n{self.screen()}\n{self.output[-2000:]!r}")
            self.read(0.1)

    def end(self, status, expected=RESTORED):
        """Waits for the end of the command, and checks that the terminal is as before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"the command does not end:\n{self.screen()}")
            self.read(0.05)
        # The terminal takes the last output before the process is gone.
        self.read(0.2)
        if self.process.returncode != status:
            raise SystemExit(f"status {self.process.returncode}, not {status}: {self.output[-2000:]!r}")
        for sequence in expected:
            if sequence not in self.output[-200:]:
                raise SystemExit(f"the terminal is not restored by {sequence!r}: {self.output[-200:]!r}")
        if termios.tcgetattr(self.slave) != self.before:
            raise SystemExit("the terminal has other settings")
        os.close(self.master)
        os.close(self.slave)


def keys(command, columns, rows):
    session = Session(command, columns, rows)
    session.wait("[clients")
    session.press("\t")
    session.wait("[exports")
    session.press("s")
    session.wait("by read")
    session.press("r")
    if columns >= 80:
        session.wait("reversed")
        session.wait("p99")
    session.press("h")
    session.wait("q, Esc")
    session.press("h\x1b[Z")
    session.wait("[clients")
    for size in [(20, 5), (1, 1), (200, 50), (columns, rows)]:
        session.resize(*size)
        session.settle(0.5)
    session.press("\t\t")
    session.wait("[files")
    session.press("\x1b[B\x1b[6~\x1b[H")
    session.press("q")
    session.end(0)


def signals(command):
    for number in [signal.SIGTERM, signal.SIGINT]:
        session = Session(command, 80, 24)
        session.wait("[clients")
        session.process.send_signal(number)
        session.end(128 + number)
    session = Session(command, 80, 24)
    session.wait("[clients")
    session.press("\x03")
    session.end(0)


def plain(command):
    """A terminal that can only print gets lines, and no control sequence."""
    for term in [None, "", "dumb"]:
        session = Session(command, 80, 24, term)
        session.wait("optimistic reads:")
        if "\x1b" in session.output:
            raise SystemExit(f"TERM={term!r} got {session.output!r}")
        session.process.send_signal(signal.SIGTERM)
        session.end(-signal.SIGTERM, [])


def hang_up(command):
    session = Session(command, 80, 24)
    session.wait("[clients")
    os.close(session.slave)
    os.close(session.master)
    session.process.wait(PATIENCE_SECONDS)


def lost_server(command, server):
    session = Session(command, 80, 24)
    session.wait("[clients")
    os.kill(server, signal.SIGTERM)
    session.wait("no server answers")
    session.wait("requests/s")
    session.press("q")
    session.end(0)


def main():
    server, command = int(sys.argv[1]), sys.argv[2:]
    keys(command, 80, 24)
    keys(command, 20, 8)
    signals(command)
    plain(command)
    hang_up(command)
    lost_server(command, server)


if __name__ == "__main__":
    main()

"""A real server for every test run, and a client by each transport."""

import contextlib
import os
import signal
import subprocess
import time

import dafs
import pytest


class Server:
    """A `dafs serve` on a port of its own, with its directory."""

    def __init__(self, command, folder, listen="127.0.0.1:0", config=None, more=()):
        self.root = folder / "export"
        self.root.mkdir(exist_ok=True)
        state = folder / "state"
        arguments = [command, "serve", "--state-directory", str(state)]
        if config is None:
            arguments += [str(self.root), "--listen", listen, "--no-root-squash", *more]
        else:
            arguments += ["--config", str(config)]
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready "), f"the server said {line!r}; see {folder}/log"
        self.url = line.split()[1]

    def stop(self):
        self.process.terminate()
        self.process.stdout.close()
        status = self.process.wait(timeout=60)
        self.log.close()
        assert status == 0


@contextlib.contextmanager
def stopped(server):
    """A server that cannot answer."""
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def interrupted(call):
    """Whether the signal of ^C ends a call that waits."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.monotonic() - start < 10
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(os.environ["DAFS"], tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture(params=["shm", "iwarp"])
def client(server, request):
    with dafs.connect(server.url, transport=request.param) as client:
        assert client.transport == request.param
        yield client


@pytest.fixture
def folder(server, tmp_path):
    """A directory on the server that no other test uses: its path, and where it really is."""
    real = server.root / tmp_path.name
    real.mkdir(exist_ok=True)
    return real

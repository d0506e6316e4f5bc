"""A relay that keeps what it passes on: record.py TARGET FILE prints its own address."""

import socket
import sys
import threading

target, kept = sys.argv[1], open(sys.argv[2], "ab", buffering=0)
host, port = target.rsplit(":", 1)


def carry(source, sink):
    try:
        while data := source.recv(65536):
            kept.write(data)
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


listener = socket.create_server(("127.0.0.1", 0))
print("127.0.0.1:%d" % listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    try:
        server = socket.create_connection((host, int(port)))
    except OSError:
        client.close()
        continue
    for pair in ((client, server), (server, client)):
        threading.Thread(target=carry, args=pair, daemon=True).start()

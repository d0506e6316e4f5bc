"""pyarrow: a table of some 100 MB becomes a Parquet file, and is read again, all of it and one column.

What it is to do is told as to the shell scripts beside it. With DAFS_URL it goes through fsspec."""

import os
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

folder, server, inputs = (os.environ[name] for name in "DEW")
url = os.environ.get("DAFS_URL")
source = os.path.join(inputs, "table.arrow")


def table():
    return pa.ipc.open_file(pa.memory_map(source)).read_all()


def file_system():
    if not url:
        return None, os.path.join(folder, "table.parquet")
    import dafs.fsspec
    import fsspec

    fsspec.register_implementation("dafs", dafs.fsspec.DafsFileSystem)
    return fsspec.core.url_to_fs(f"{url}/table.parquet")


match sys.argv[1]:
    case "input":
        rows = 4_000_000 * int(os.environ["SCALE"]) // 100
        noise = random.Random(1)

        def column(kind):
            return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(noise.randbytes(8 * rows))])

        made = pa.table({"first": column(pa.int64()), "second": column(pa.uint64()), "third": column(pa.int64())})
        with pa.OSFile(source, "wb") as sink, pa.ipc.new_file(sink, made.schema) as writer:
            writer.write_table(made)
    case "run":
        system, path = file_system()
        pq.write_table(table(), path, filesystem=system, row_group_size=1 << 18)
        assert pq.read_table(path, filesystem=system).equals(table())
        assert pq.read_table(path, filesystem=system, columns=["second"]).equals(table().select(["second"]))
    case "check":
        assert pq.read_table(os.path.join(server, "table.parquet")).equals(table())

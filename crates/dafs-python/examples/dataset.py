"""Records of equal length in one file of a DAFS server, for a data loader of torch.

    python3 dataset.py dafs://server/tree/records.bin 65536

Every worker of the loader, forked or spawned, opens the file by itself; a batch is read into one tensor
by reads that are sent together.
"""

from __future__ import annotations

import os
import sys

import dafs
from dafs.fsspec import DafsFileSystem


class Records:
    """A map-style data set (what torch.utils.data.Dataset asks for) of fixed-length records."""

    def __init__(self, url, record_bytes):
        path = DafsFileSystem._strip_protocol(url)
        self._path = path
        self._client = dafs.connect(url)
        self._record_bytes = record_bytes
        self._count = self._client.stat(path).st_size // record_bytes
        self._opened_by = None

    def __getstate__(self):
        return {**self.__dict__, "_opened_by": None, "_file": None}

    def __len__(self):
        return self._count

    def _open(self):
        """The file, opened by this process."""
        if self._opened_by != os.getpid():
            self._file = self._client.open(self._path, "rb", buffering=0)
            self._opened_by = os.getpid()
        return self._file

    def __getitem__(self, number):
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers):
        """A batch: the rows of one array."""
        import numpy

        file, batch = self._open(), self._client.batch()
        rows = numpy.empty((len(numbers), self._record_bytes), dtype=numpy.uint8)
        for row, number in zip(rows, numbers):
            batch.read_into(file, row, number * self._record_bytes)
        for completion in batch.run():
            if completion.result() != self._record_bytes:
                raise EOFError(f"the file {self._path} has been cut")
        return rows


def loader(url, record_bytes, **options):
    """A torch.utils.data.DataLoader whose batches are tensors of bytes, a record in each row."""
    import torch

    return torch.utils.data.DataLoader(
        Records(url, record_bytes), collate_fn=_to_tensor, **options
    )


def _to_tensor(rows):
    import numpy
    import torch

    return torch.from_numpy(numpy.asarray(rows))


if __name__ == "__main__":
    total = 0
    for batch in loader(sys.argv[1], int(sys.argv[2]), batch_size=16, num_workers=2):
        total += len(batch)
    print(f"{total} records")

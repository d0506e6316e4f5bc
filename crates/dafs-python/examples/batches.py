"""Batches of records of one file, read ahead into memory that the server writes to itself.

    python3 batches.py dafs://server/tree/records.bin 65536

While a program uses a batch, the reads of the next ones are under way. Their memory is registered with the
transport, and with CUDA it is pinned, too: a batch is copied once, by the device.
"""

from __future__ import annotations

import collections
import sys
import time

import dafs


class Batches:
    """An iterable of tensors of bytes, a record in each row, in the given order of records.

    Without a `device` a tensor is the memory of the transfer: use or copy it before asking for the next one.
    `depth` batches have memory at a time.
    """

    def __init__(self, url, record_bytes, batch_records, *, depth=3, order=None, device=None):
        self._client = dafs.connect(url)
        self._file = self._client.open(self._client.base, "rb", buffering=0)
        self._record_bytes = record_bytes
        self._batch_records = batch_records
        self._depth = depth
        self._device = device
        records = self._file.stat().st_size // record_bytes
        self._order = range(records) if order is None else order

    def __len__(self):
        return -(-len(self._order) // self._batch_records)

    def __iter__(self):
        group, ahead = self._client.completion_group(), collections.deque()
        starts = iter(range(0, len(self._order), self._batch_records))
        is_pinned = self._device is not None
        buffer_bytes = self._batch_records * self._record_bytes
        slots = [_Slot(self._client.buffer(buffer_bytes), is_pinned) for _ in range(self._depth)]
        try:
            for slot, start in zip(slots, starts):
                self._begin(group, slot, start)
                ahead.append(slot)
            while ahead:
                slot = ahead.popleft()
                while slot.left:
                    for completion in group.wait():
                        completion.user_data.end(completion, self._record_bytes)
                yield self._tensor(slot)
                start = next(starts, None)
                if start is not None:
                    self._begin(group, slot, start)
                    ahead.append(slot)
        finally:
            for slot in slots:
                slot.unpin()

    def _begin(self, group, slot, start):
        """Sends the reads of a batch together."""
        numbers = self._order[start : start + self._batch_records]
        batch, memory = self._client.batch(), memoryview(slot.memory)
        for place, number in enumerate(numbers):
            row = memory[place * self._record_bytes : (place + 1) * self._record_bytes]
            batch.read_into(self._file, row, number * self._record_bytes, user_data=slot)
        slot.left = slot.records = len(numbers)
        group.submit(batch)

    def _tensor(self, slot):
        rows = slot.tensor[: slot.records * self._record_bytes].view(slot.records, -1)
        if self._device is None:
            return rows
        import torch

        copy = rows.to(self._device, non_blocking=True)
        # The next reads go to this memory.
        torch.cuda.current_stream(copy.device).synchronize()
        return copy


class _Slot:
    """Registered memory of one batch."""

    def __init__(self, memory, is_pinned):
        import torch

        self.memory = memory
        self.tensor = torch.frombuffer(memory, dtype=torch.uint8)
        self.records = self.left = 0
        self._is_pinned = is_pinned
        if is_pinned:
            cuda = torch.cuda.cudart()
            torch.cuda.check_error(cuda.cudaHostRegister(self.tensor.data_ptr(), len(memory), 0))

    def end(self, completion, record_bytes):
        if completion.result() != record_bytes:
            raise EOFError("the file has been cut")
        self.left -= 1

    def unpin(self):
        if self._is_pinned:
            import torch

            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())


if __name__ == "__main__":
    import torch

    device = "cuda" if torch.cuda.is_available() else None
    start, size = time.monotonic(), 0
    for batch in Batches(sys.argv[1], int(sys.argv[2]), 64, device=device):
        size += batch.numel()
    seconds = time.monotonic() - start
    print(f"{size} bytes to {device or 'memory'}, {size / seconds / 2**20:.0f} MiB/s")

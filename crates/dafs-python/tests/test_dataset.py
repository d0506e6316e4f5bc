"""The data set of examples/dataset.py, with a loader of torch and without."""

import multiprocessing
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

numpy = pytest.importorskip("numpy")

RECORD_BYTES = 4096
RECORDS = 100


@pytest.fixture
def records(server, folder):
    """A file of records, each with its number in every byte, and one that is not whole."""
    data = b"".join(bytes([number]) * RECORD_BYTES for number in range(RECORDS))
    (folder / "records").write_bytes(data + b"rest")
    return f"{server.url}{folder.name}/records"


def first_bytes(arguments):
    records, numbers = arguments
    return [int(row[0]) for row in records.__getitems__(numbers)]


def test_a_batch_may_be_of_any_length(records):
    from dataset import Records

    numbers = [number % RECORDS for number in range(30_000)]
    assert first_bytes((Records(records, RECORD_BYTES), numbers)) == numbers


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_share_a_data_set(records, method):
    from dataset import Records

    data = Records(records, RECORD_BYTES)
    assert len(data) == RECORDS
    assert data[7].tobytes() == b"\7" * RECORD_BYTES
    batches = [list(range(at, at + 10)) for at in range(0, RECORDS, 10)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map(first_bytes, [(data, batch) for batch in batches])
        pool.close()
        pool.join()
    assert found == batches


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_a_loader_of_torch(records, method):
    pytest.importorskip("torch")
    from dataset import loader

    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    seen = []
    for batch in loader(records, RECORD_BYTES, batch_size=16, **workers):
        assert batch.shape[1] == RECORD_BYTES
        assert (batch == batch[:, :1]).all()
        seen += batch[:, 0].tolist()
    assert seen == list(range(RECORDS))


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_batches_are_read_ahead_into_registered_memory(records, depth):
    pytest.importorskip("torch")
    from batches import Batches

    order = [number * 7 % RECORDS for number in range(RECORDS)]
    batches = Batches(records, RECORD_BYTES, 16, depth=depth, order=order)
    assert len(batches) == 7
    for _ in range(2):
        seen = []
        for batch in batches:
            assert batch.shape[1] == RECORD_BYTES
            assert (batch == batch[:, :1]).all()
            seen += batch[:, 0].tolist()
        assert seen == order
        # An iteration that is not finished leaves reads under way.
        assert next(iter(batches))[0, 0] == order[0]
    assert sum(len(batch) for batch in Batches(records, RECORD_BYTES, 64)) == RECORDS


def test_batches_go_to_a_device(records):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    from batches import Batches

    batches = Batches(records, RECORD_BYTES, 16, device="cuda")
    assert [int(row[0]) for batch in batches for row in batch.cpu()] == list(range(RECORDS))


def test_reads_into_a_tensor(server, records):
    torch = pytest.importorskip("torch")
    import dafs

    with dafs.connect(records) as client:
        with client.open(client.base, "rb", buffering=0) as file:
            tensor = torch.zeros(RECORD_BYTES, dtype=torch.int32)
            assert file.pread_into(tensor, 3 * RECORD_BYTES) == 4 * RECORD_BYTES
            assert tensor[0] == 0x03030303 and tensor[-1] == 0x06060606


def test_a_tensor_cannot_be_resized_before_its_completion_is_fetched(server, records):
    torch = pytest.importorskip("torch")
    import dafs

    with dafs.connect(records) as client:
        with client.open(client.base, "rb", buffering=0) as file:
            group = client.completion_group()
            tensor = torch.zeros(RECORD_BYTES, dtype=torch.uint8)
            storage = getattr(tensor, "untyped_storage", tensor.storage)()
            # A tensor that could not be resized may have another shape all the same.
            content = tensor[:]
            group.read_into(file, tensor, 3 * RECORD_BYTES)
            for resize in (lambda: tensor.resize_(1 << 20), lambda: storage.resize_(0)):
                with pytest.raises(RuntimeError, match="not resizable"):
                    resize()
            (completion,) = group.wait()
            assert completion.result() == RECORD_BYTES
            assert (content == 3).all()

"""The typed stubs say what there is, no more and no less, and a checker of types understands them."""

import ast
import importlib
import importlib.metadata
import inspect
import io
import pathlib
import shutil
import subprocess
import sys

import dafs
import pytest

PACKAGE = pathlib.Path(dafs.__file__).parent


def names(body):
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in body if isinstance(node, kinds)}


def arguments(function):
    """The names of a function's arguments in a stub."""
    given = function.args
    found = [each.arg for each in given.posonlyargs + given.args + given.kwonlyargs]
    found += [each.arg for each in (given.vararg, given.kwarg) if each]
    return found


def test_the_stubs_name_what_there_is():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    assert {name for name in names(stub.body) if name[0] != "_"} == set(dafs.__all__) - {"__version__"}
    for node in stub.body:
        if not isinstance(node, ast.ClassDef) or node.name.endswith("Error") or node.name[0] == "_":
            continue
        kind = getattr(dafs, node.name)
        told = {name for name in names(node.body) if not name.startswith("_")}
        there = {name for base in kind.__mro__ if base.__module__.startswith("dafs")
                 for name in vars(base) if not name.startswith("_")}
        # Raw files are an inner matter; what files of Python have is told by their class.
        there -= {"open_raw", "open_unlinked_raw", "create_raw", "submit_batch"}
        missing = {name for name in told if not hasattr(kind, name)}
        assert not missing, f"{node.name} has no {missing}"
        inherited = set(dir(io.RawIOBase)) if node.name == "File" else set()
        assert there - inherited <= told, f"untold of {node.name}: {there - inherited - told}"


def test_the_options_of_an_open_are_those_of_the_stub():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    (typed,) = (node for node in stub.body if getattr(node, "name", None) == "_OpenOptions")
    real = inspect.signature(dafs.Client.open).parameters.values()
    keywords = [each.name for each in real if each.kind is inspect.Parameter.KEYWORD_ONLY]
    assert [node.target.id for node in typed.body] == keywords


def test_the_options_are_the_same_everywhere():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    typed = [node.target.id for node in classes["_Options"].body]
    (init,) = (node for node in classes["Client"].body
               if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    assert typed == [each.arg for each in init.args.kwonlyargs]
    assert typed == list(importlib.import_module("dafs.fsspec")._OPTIONS)


def test_the_version_is_that_of_the_package():
    assert dafs.__version__ == importlib.metadata.version("dafs")


@pytest.mark.parametrize("module, name", [("aio", "Group"), ("fsspec", "DafsFileSystem")])
def test_the_stubs_of_modules_name_what_there_is(module, name):
    stub = ast.parse((PACKAGE / f"{module}.pyi").read_text())
    (told,) = (node for node in stub.body if isinstance(node, ast.ClassDef))
    assert told.name == name
    kind = getattr(importlib.import_module(f"dafs.{module}"), name)
    there = {each for each in vars(kind) if not each.startswith("_")} - {"protocol", "root_marker"}
    assert there == {each for each in names(told.body) if not each.startswith("_")}
    for function in told.body:
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            real = vars(kind)[function.name]
            if not inspect.isfunction(real) or function.name == "__init__":
                continue
            assert arguments(function) == list(inspect.signature(real).parameters), function.name
            is_async = inspect.iscoroutinefunction(real)
            assert isinstance(function, ast.AsyncFunctionDef) == is_async, function.name


PROGRAM = '''
import asyncio
import dafs
import dafs.aio
from dafs.fsspec import DafsFileSystem

async def work(client: dafs.Client) -> int:
    file = client.open("file", "rb", buffering=0)
    async with dafs.aio.Group(client) as group:
        count: int = await group.read_into(file, bytearray(10), 0)
        data: bytearray = await group.read(file, 10, 0)
        await group.commit(file)
    batch = client.batch()
    batch.read_into(file, [bytearray(10)], [(0, 10)])
    results: list[int] = [each.result() for each in batch.run()]
    with client.register(bytearray(10)):
        names: list[str] | None = client.fence_list("file")
    with dafs.within(5.0):
        size: int = client.stat("file").st_size
    return count + size + len(data) + sum(results)

def main() -> None:
    with dafs.connect("dafs://server/", transport="shm") as client:
        print(asyncio.run(work(client)))
    fs = DafsFileSystem("server", fence_id="me")
    content: bytes = fs.cat_file("/file")
    fs.pipe_file("/file", content)
    wrong: int = fs.ukey("/file")
    with dafs.connect("dafs://server/") as client, client.open("file", "rb") as file:
        wrong = file.read()
    dafs.connect("dafs://server/", deadlin=3)
    client.open("file", "wb", denied="read")
'''


def test_a_checker_of_types_understands_them(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    # A copy: a checker refuses the folder that packages are installed in.
    stubs = tmp_path / "stubs" / "dafs"
    shutil.copytree(PACKAGE, stubs, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache",
         tmp_path / "program.py"],
        capture_output=True, text=True, env={"MYPYPATH": str(stubs.parent)},
    )
    complaints = [line for line in checked.stdout.splitlines() if "error:" in line]
    # Types that fsspec does not have are not ours to tell.
    complaints = [line for line in complaints if "fsspec" not in line or "program.py" in line]
    # Some versions of mypy tell of a wrong keyword twice.
    lines = {each.split(":", 2)[1] for each in complaints}
    assert len(lines) == 4, checked.stdout + checked.stderr
    assert all('variable has type "int"' in each for each in complaints[:2])
    assert '"deadlin"' in complaints[2]
    assert 'No overload variant of "open"' in complaints[-1]

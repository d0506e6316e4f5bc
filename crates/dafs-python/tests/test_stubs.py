"""The typed stubs say what there is, no more and no less."""

import ast
import pathlib

import dafs


def names(body):
    return {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def test_the_stubs_name_what_there_is():
    stub = ast.parse((pathlib.Path(dafs.__file__).parent / "__init__.pyi").read_text())
    assert names(stub.body) == set(dafs.__all__)
    for node in stub.body:
        if not isinstance(node, ast.ClassDef) or node.name.endswith("Error"):
            continue
        kind = getattr(dafs, node.name)
        told = {name for name in names(node.body) if not name.startswith("_")}
        there = {name for base in kind.__mro__ if base.__module__.startswith("dafs")
                 for name in vars(base) if not name.startswith("_")}
        # Raw files are an inner matter; what files of Python have is told by their class.
        there -= {"open_raw", "submit_batch"}
        missing = {name for name in told if not hasattr(kind, name)}
        assert not missing, f"{node.name} has no {missing}"
        inherited = set(dir(__import__("io").RawIOBase)) if node.name == "File" else set()
        assert there - inherited <= told, f"untold of {node.name}: {there - inherited - told}"

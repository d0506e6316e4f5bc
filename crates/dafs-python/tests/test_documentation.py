"""The examples of docs/python.md run, one after the other, as they stand there; and that of docs/applications.md."""

import importlib.util
import json
import pathlib
import re

import dafs
import pytest

DOCS = pathlib.Path(__file__).parents[3] / "docs"


def examples_of(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_of_an_application_runs(server, folder):
    pytest.importorskip("pyarrow")
    (example,) = examples_of(DOCS / "applications.md")
    assert "dafs://localhost/" in example
    exec(example.replace("dafs://localhost/", f"{server.url}{folder.name}/"), {})
    assert (folder / "table.parquet").stat().st_size > 100_000


def test_the_examples_run(server, capsys):
    page = DOCS / "python.md"
    examples = examples_of(page)
    assert len(examples) >= 5
    names = {"url": server.url, "dafs": dafs}
    has_pandas = all(importlib.util.find_spec(needed) for needed in ("pandas", "pyarrow"))
    for example in examples:
        if "import pandas" in example and not has_pandas:
            continue
        exec(compile(example, str(page), "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "['sub']"
    assert sorted(said[1:6]) == ["0", "1", "2", "3", "4"]
    of_pandas = ["(1, 2)"] if has_pandas else []
    assert said[6:] == ["[1000, 1000, 1000, 1000, 1000]", "['/tree/sub', '/tree/table.csv']", *of_pandas]


def test_the_notebook_runs(server, folder, monkeypatch):
    for needed in ("fsspec", "pandas", "tqdm"):
        pytest.importorskip(needed)
    page = pathlib.Path(__file__).parents[1] / "examples" / "first_steps.ipynb"
    cells = json.loads(page.read_text())["cells"]
    monkeypatch.setenv("DAFS_URL", f"{server.url}{folder.name}")
    names, shown = {}, []
    for cell in cells:
        if cell["cell_type"] == "code":
            *lines, last = "".join(cell["source"]).splitlines()
            exec("\n".join(lines), names)
            shown.append(eval(last, names))
    total = 7 * sum(range(200))
    assert shown[2:] == [total, 200, 200, sum(range(1000))]

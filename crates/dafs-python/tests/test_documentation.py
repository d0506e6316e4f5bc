"""The examples of docs/python.md run, one after the other, as they stand there."""

import pathlib
import re

import dafs


def test_the_examples_run(server, capsys):
    page = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 5
    names = {"url": server.url, "dafs": dafs}
    for example in examples:
        exec(compile(example, str(page), "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "['sub']"
    assert sorted(said[1:6]) == ["0", "1", "2", "3", "4"]
    assert said[6:] == ["[1000, 1000, 1000, 1000, 1000]", "['/tree/sub', '/tree/table.csv']"]

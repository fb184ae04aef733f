"""The README's example runs."""

import re
from pathlib import Path


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    namespace = {"__name__": "example"}
    exec(compile(example, str(tmp_path / "example.py"), "exec"), namespace)
    assert (tmp_path / "report.html").exists()
    assert len(namespace["report"].graphs) == 1
    assert not namespace["report"].eager_graphs

"""The command line."""

import torch

import plait
from plait.cli import main


def test_info_names_versions_compiler_and_cache(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for words in ("plait-scheduler", "torch", "C++ compiler", "cache folder", "cache size"):
        assert words in out


def test_info_says_what_to_install_without_a_compiler(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert main(["info"]) == 0
    assert "Install g++" in capsys.readouterr().out


def test_the_cache_is_measured_and_cleared(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    plait.compile(torch.sin)(torch.ones(3))
    plait.compile(lambda x: x * 2 + 1)(torch.ones(3))
    assert list(tmp_path.rglob("*.so"))
    assert main(["cache", "size"]) == 0
    assert not capsys.readouterr().out.startswith("0.00 MB")
    assert main(["cache", "clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.so"))
    assert main(["cache", "path"]) == 0
    assert str(tmp_path) in capsys.readouterr().out


def test_options_are_listed_with_their_meaning(capsys):
    assert main(["options"]) == 0
    out = capsys.readouterr().out
    assert "strict = False" in out
    assert "scheduler.fuse_pointwise = True" in out

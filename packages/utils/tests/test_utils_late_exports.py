"""Names that a package imports when they are first asked for."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from plait_utils import late_exports


def test_names_are_imported_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("some_package")
    monkeypatch.setitem(sys.modules, "some_package", package)
    package.__getattr__ = late_exports(
        "some_package", {"colorsys": ["rgb_to_hsv"], "no.such": ["x"]}
    )
    assert "rgb_to_hsv" not in vars(package)
    assert package.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)
    assert "rgb_to_hsv" in vars(package)
    with pytest.raises(AttributeError, match="'some_package' has no attribute 'other'"):
        _ = package.other
    with pytest.raises(ModuleNotFoundError):
        _ = package.x


def test_an_export_of_its_modules_name_is_not_the_module(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "some_other_package"
    folder.mkdir()
    (folder / "build.py").write_text("def build(): return 1\nclass Built: pass\n")
    (folder / "__init__.py").write_text(
        "from plait_utils import late_exports\n"
        "places = {'some_other_package.build': ('Built', 'build')}\n"
        "__getattr__ = late_exports(__name__, places)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from some_other_package import Built, build

    assert Built
    assert build() == 1

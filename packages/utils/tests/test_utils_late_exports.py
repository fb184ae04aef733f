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


def test_an_export_named_like_a_module_is_refused() -> None:
    for places in (
        {"some_package.build": ["Built", "build"]},
        {"some_package.build": ["Built"], "some_package.making": ["build"]},
    ):
        with pytest.raises(ValueError, match="is a module, and exported by"):
            late_exports("some_package", places)
    late_exports("some_package", {"other_package.build": ["build"]})

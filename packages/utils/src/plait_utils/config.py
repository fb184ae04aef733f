"""Typed settings: what each means, where it may come from, whether it changes code."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_type_hints

from plait_utils.errors import PlaitError
from plait_utils.hashing import stable_hash

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


class SettingError(PlaitError, ValueError):
    """A setting that does not exist, or a value that it does not take."""


def setting(default: Any, doc: str, *, env: str | None = None, in_cache_key: bool = True) -> Any:
    """A field of a `Settings` class.

    Args:
        default: the value where nothing else is given.
        doc: what the setting does, one sentence.
        env: the environment variable that overrides the default.
        in_cache_key: whether it changes generated code.
    """
    metadata = {"doc": doc, "env": env, "in_cache_key": in_cache_key}
    return dataclasses.field(default=default, metadata=metadata)


class Settings:
    """Base of typed, immutable settings; subclasses are frozen dataclasses of `setting` fields."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Settings from the environment, with `overrides` on top.

        Raises SettingError, naming the closest setting, for an unknown name, and for a
        value of a wrong type.
        """
        source = os.environ if environ is None else environ
        types = get_type_hints(cls)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            env = field.metadata.get("env")
            if env is not None and env in source:
                values[field.name] = _parse(env, source[env], types[field.name])
        for name, value in overrides.items():
            if name not in types:
                raise SettingError(f"there is no setting {name!r}", hint=_suggest(name, [*types]))
            values[name] = _check(name, value, types[name])
        return cls(**values)

    def cache_key(self) -> str:
        """A hash of the settings that change generated code."""
        parts = [
            (field.name, repr(getattr(self, field.name)))
            for field in dataclasses.fields(self)
            if field.metadata.get("in_cache_key", True)
        ]
        return stable_hash(type(self).__name__, parts)

    @classmethod
    def describe(cls) -> str:
        """One line for each setting: name, default, environment variable, meaning."""
        lines = []
        for field in dataclasses.fields(cls):
            env = field.metadata.get("env")
            source = f" (environment: {env})" if env else ""
            lines.append(f"{field.name} = {field.default!r}{source}: {field.metadata['doc']}")
        return "\n".join(lines)


def _parse(env: str, text: str, kind: Any) -> Any:
    if kind is bool or bool in getattr(kind, "__args__", ()):
        lowered = text.strip().lower()
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        raise SettingError(f"{env}={text!r} is not a truth value", hint="Use 0 or 1.")
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise SettingError(f"{env}={text!r} is not a whole number") from None
    if kind is float or float in getattr(kind, "__args__", ()):
        try:
            return float(text)
        except ValueError:
            raise SettingError(f"{env}={text!r} is not a number") from None
    return text


def _check(name: str, value: object, kind: Any) -> object:
    expected = (kind,) if isinstance(kind, type) else getattr(kind, "__args__", ())
    if float in expected and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = tuple(k for k in expected if isinstance(k, type))
    if plain and (not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain)):
        names = " or ".join(k.__name__ for k in plain)
        raise SettingError(f"setting {name!r} takes {names}, not {value!r}")
    return value


def _suggest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(sorted(known))
    return f"Did you mean {close[0]!r}?" if close else f"The settings are: {listed}."

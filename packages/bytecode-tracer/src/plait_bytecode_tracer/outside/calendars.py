"""Dates and times as constants: which of their methods depend on more than their value."""

from __future__ import annotations

import copy
import datetime
import struct
from typing import Any

PLAIN: tuple[type, ...] = (datetime.date, datetime.timedelta, datetime.timezone)
"""Classes of values that nothing but themselves decides."""
ZONED: tuple[type, ...] = (datetime.datetime, datetime.time)
"""Classes of values that may have a time zone, of any class."""
CLASSES: tuple[type, ...] = (*PLAIN, *ZONED)
FRESH = (datetime.date, datetime.timedelta, datetime.time, struct.Struct)
"""Classes that make an object for each value that is computed."""
_MAKERS = ("fromisoformat", "fromordinal", "fromisocalendar", "combine")
"""Class methods that ask neither the clock nor the settings of the process."""
_LOCAL = ("astimezone", "strptime", "timestamp")
_LOCAL_FORMATS = frozenset("aAbBcxXpsZ")
"""What the locale or the time zone of the process writes."""


def is_plain_time(value: Any) -> bool:
    """Whether a value of the `ZONED` classes has no time zone of a class of the program's."""
    return value.tzinfo is None or type(value.tzinfo) is datetime.timezone


def again(value: Any) -> Any:
    """Another object of the `FRESH` classes with the same value."""
    return struct.Struct(value.format) if isinstance(value, struct.Struct) else copy.copy(value)


def is_makers(function: Any) -> bool:
    """Whether a method of one of the classes makes a value of its arguments alone."""
    return function.__self__ in CLASSES and function.__name__ in _MAKERS


def is_local(function: Any) -> bool:
    """Whether a method of a date or time asks the settings of the process."""
    if function.__name__ not in _LOCAL:
        return False
    zone = getattr(function.__self__, "tzinfo", None)
    return not (function.__name__ == "timestamp" and zone is not None)


def formats_locally(text: object) -> bool:
    """Whether a format of dates depends on the settings of the process."""
    directives = str(text).split("%")[1:]
    return any(each[:1] in _LOCAL_FORMATS for each in directives)

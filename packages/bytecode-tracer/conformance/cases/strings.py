"""Strings and bytes: methods, formatting, as guards."""

from __future__ import annotations

import re
import string

from conformance.declare import case, only, t, with_x


@case(with_x("relu", "sin", "other", "relu"))
def dispatch_on_string(x, name):
    if name == "relu":
        return x.relu()
    elif name.startswith("s"):
        return x.sin()
    raise ValueError(f"unknown {name!r}")


@case(only("Hello World", "abc", ""))
def case_methods(text):
    return text.upper(), text.lower(), text.title(), text.swapcase(), text.capitalize()


@case(only("a,b,c", "a", "", "x,,y"))
def split_and_join(text):
    parts = text.split(",")
    return parts, "-".join(parts), text.partition(","), text.rsplit(",", 1)


@case(only("  pad ", "xxaxx"))
def strip_methods(text):
    return text.strip(), text.lstrip("x "), text.rstrip("x"), text.removeprefix("xx")


@case(only("banana", "an", ""))
def searching(text):
    return text.find("an"), text.rfind("an"), text.count("a"), "nan" in text, text.endswith("a")


@case(only("banana", ""))
def index_raises(text):
    return text.index("n")


@case(only("abcdef", "ab", "x"))
def indexing(text):
    return text[0], text[-1], text[1:3], text[::-1], text[::2], len(text), text * 2


@case(with_x(3, 3.14159, "text", None))
def format_strings(x, value):
    return f"{value}", f"{value!r:>10}", f"{value=}", f"{x.shape}", "{} {}".format(value, 1)


@case(only(3.14159, 1e10, 42, -1))
def format_specifications(n):
    width = 12
    return f"{n:.2f}", f"{n:>{width}}", f"{n:+e}", format(n, ",.1f"), f"{n:012.3f}", "%8.3f" % n


@case(only(("a", 1), ("b", 2)))
def percent_formatting(pair):
    return "%s=%d" % pair, "%(k)s" % {"k": pair}, "%r" % (pair,), "%5s|%-5s|" % ("a", "b")


@case(only("abc", "123", "a1", " ", ""))
def predicates(text):
    return text.isalpha(), text.isdigit(), text.isalnum(), text.isspace(), text.isidentifier()


@case(only("abc", "aéz"))
def encoding(text):
    raw = text.encode()
    return raw, raw.decode(), len(raw), raw[0], list(raw), raw.hex(), ord(text[1])


@case(only(b"abc", b"", b"\x00\xff"))
def bytes_methods(raw):
    return raw + b"x", raw[:1], raw.upper(), b"a" in raw, bytearray(raw), bytes([1, 2])


@case(only("a-b_c", "abc"))
def replace_and_translate(text):
    table = str.maketrans({"-": "+", "_": None})
    return text.replace("b", "BB"), text.translate(table), text.zfill(8), text.center(9, "*")


@case(only("x1y22", "none"))
def regular_expressions(text):
    found = re.search(r"(\d+)", text)
    return found and found.group(1), re.sub(r"\d", "#", text), re.split(r"\d+", text)


@case(only("n", "value"))
def templates(name):
    return string.Template(f"${name}!").safe_substitute(n=1), string.ascii_letters[:3]


@case(only("line one\nline two", "single"))
def lines(text):
    return text.splitlines(), [line.split() for line in text.split("\n")], "\t".expandtabs(4)


@case(with_x("a", "b", "ab"))
def comparison(x, text):
    return text < "b", text == "a", max(text, "aa"), sorted(["c", text, "a"]), x


@case(with_x("weight", "bias"))
def attribute_name_from_string(x, name):
    class Holder:
        weight, bias = 2, 3

    return x * getattr(Holder, name), f"{Holder.__name__}.{name}"


@case(with_x(["a", "b"], ["c"]))
def string_building(x, names):
    text = ""
    for name in names:
        text += name + "."
    return text[:-1], text.count("."), x


@case(lambda: [(t(2, 3),), (t(4),), (t(2, 3).double(),)])
def text_of_metadata(x):
    return str(x.dtype), str(x.shape), f"{x.ndim}d", repr(x.device), str(tuple(x.shape))


@case(lambda: [(t(2),), (t(2, start=3),)])
def text_of_values(x):
    return str(x), f"{x}", repr(x + 1)


@case(only("a", "b"))
def string_subclass(text):
    class Tagged(str):
        tag = "t"

        def shout(self):
            return self.upper() + "!"

    made = Tagged(text)
    return made.shout(), made.tag, made == text, len(made)


@case(with_x("a1b22", "xyz", ""))
def patterns_with_functions(x, text):
    doubled = re.sub(r"\d+", lambda m: str(int(m.group()) * 2), text)
    parts = [m.span() for m in re.finditer(r"[a-z]", text)]
    return doubled, parts, re.subn("[ab]", "-", text), re.split(r"\d", text), x


@case(only("(", "a", "[a-z]+"))
def compiled_in_the_program(pattern):
    try:
        found = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        return str(error)
    return found.findall("A bc"), found.pattern, found.flags, bool(found.fullmatch("A"))

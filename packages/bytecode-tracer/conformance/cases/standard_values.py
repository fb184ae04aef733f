"""The standard library's values: numbers, bytes, dates, text, heaps."""

from __future__ import annotations

import array
import base64
import bisect
import calendar
import cmath
import collections
import datetime
import decimal
import difflib
import fractions
import hashlib
import heapq
import json
import math
import numbers
import operator
import re
import statistics
import string
import struct
import textwrap
import uuid
import zlib

from conformance.declare import case, only, scenario, t, with_x

# Heaps and sorted lists.


@case(with_x([5, 3, 8, 1], [2, 2, 1], []))
def heap_of_ints(x, items):
    heapq.heapify(items)
    heapq.heappush(items, 4)
    smallest = heapq.heappop(items)
    replaced = heapq.heapreplace(items, 7) if items else None
    pushed = heapq.heappushpop(items, 0)
    return x * smallest, replaced, pushed, items


@case(with_x(1, 2))
def heap_made_inside(x, n):
    heap = []
    for priority in (3, 1, 2):
        heapq.heappush(heap, (priority * n, f"task{priority}", x * priority))
    order = []
    while heap:
        priority, name, value = heapq.heappop(heap)
        order.append((priority, name, value))
    return order


class Job:
    def __init__(self, cost, payload):
        self.cost = cost
        self.payload = payload

    def __lt__(self, other):
        return self.cost < other.cost


@case(with_x([3, 1, 2], [1, 5, 0]))
def heap_of_objects(x, costs):
    heap = [Job(cost, x * cost) for cost in costs]
    heapq.heapify(heap)
    first = heapq.heappop(heap)
    heapq.heappush(heap, Job(10, x))
    return first.payload, [job.cost for job in heap], heapq.nsmallest(2, costs)


@case(with_x([3, 1, 2, 9], [1, 5, 0]))
def largest_and_merged(x, items):
    merged = list(heapq.merge(sorted(items), [0, 4], key=lambda value: value))
    pairs = heapq.nlargest(2, enumerate(items), key=operator.itemgetter(1))
    return x * merged[0], merged, pairs, heapq.nsmallest(1, items, key=lambda v: -v)


@case(with_x([1, 3, 5], [2, 2, 2], []))
def bisecting(x, items):
    place = bisect.bisect(items, 2)
    bisect.insort(items, 2)
    bisect.insort_left(items, 4)
    return x + place, items, bisect.bisect_left(items, 2), bisect.bisect_right(items, 2, 0, 1)


@case(with_x(1, 3))
def bisecting_by_key(x, n):
    rows = [("a", 1), ("b", 2), ("c", 4)]
    place = bisect.bisect_left(rows, n, key=lambda row: row[1])
    bisect.insort(rows, ("n", n), key=lambda row: row[1])
    return x * place, rows


@case(with_x([1.5, 2.5], [0.0, 9.0]))
def bisecting_objects(x, items):
    jobs = [Job(cost, x) for cost in items]
    bisect.insort(jobs, Job(2, x * 2))
    return [job.cost for job in jobs], jobs[1].payload


# Bytes.


@case(with_x(1, 300))
def packed(x, n):
    data = struct.pack("<iHd", n, n, 0.5)
    a, b, c = struct.unpack("<iHd", data)
    return x * a, data, b, c, struct.calcsize("<iHd"), struct.unpack_from("<H", data, 4)


@case(with_x(1, -1))
def packed_wrongly(x, n):
    try:
        data = struct.pack("B", n)
    except struct.error as error:
        return x, str(error)
    return x * 2, data


LAYOUT = struct.Struct(">hh")


@case(with_x(1, 7))
def struct_object(x, n):
    data = LAYOUT.pack(n, n + 1)
    pairs = list(LAYOUT.iter_unpack(data * 2))
    own = struct.Struct("<q")
    return x * LAYOUT.size, pairs, own.unpack(own.pack(n)), own.format


@case(with_x(b"abc", b"", b"xyz\xff"))
def bytes_methods(x, data):
    parts = data.hex(), data.upper(), data.find(b"c"), data[1:], data + b"!", data * 2
    return x * len(data), parts, list(data), bytes(reversed(data)), bytes([1, 2]), b"".join([data])


@case(with_x(b"abc", b"de"))
def bytearray_made(x, data):
    buffer = bytearray(data)
    buffer.append(33)
    buffer.extend(b"xy")
    buffer[0] = 65
    del buffer[1]
    buffer += b"z"
    return x * len(buffer), buffer, bytes(buffer), buffer.find(b"y"), buffer.decode()


@case(with_x(bytearray(b"abc"), bytearray(b"")))
def bytearray_argument(x, buffer):
    buffer.append(7)
    buffer.extend([1, 2])
    return x * len(buffer), buffer, buffer[-1]


@case(with_x(b"abcdef", bytearray(b"ghijkl")))
def memory_view(x, data):
    view = memoryview(data)[1:4]
    return x * len(view), bytes(view), view.tolist(), view[0], view.nbytes, view.readonly


@case(with_x("héllo", "a"))
def encoded(x, text):
    data = text.encode("utf-8")
    return x * len(data), data, data.decode(), base64.b64encode(data), zlib.crc32(data)


@case(with_x("a", "b"))
def hashed(x, text):
    digest = hashlib.sha256(text.encode()).hexdigest()
    made = hashlib.md5()
    made.update(text.encode())
    return x * (digest[0] < "8"), digest, made.hexdigest()


@case(with_x([1, 2, 3], [4]))
def array_of_numbers(x, items):
    made = array.array("i", items)
    made.append(9)
    return x * len(made), list(made), made.tolist(), made.typecode


@case(with_x(3, 4))
def number_of_bytes(x, n):
    return x * n.bit_length(), n.to_bytes(2, "big"), int.from_bytes(b"\x01\x02", "little")


# Dates.


@case(with_x(1, 40))
def dates(x, n):
    day = datetime.date(2024, 1, 31) + datetime.timedelta(days=n)
    return x * day.day, day, day.isoformat(), day.weekday(), day.replace(year=2025), day.year


@case(with_x(datetime.date(2024, 2, 28), datetime.date(2025, 2, 28)))
def date_argument(x, day):
    after = day + datetime.timedelta(days=1)
    return x * after.month, after - day, day < after, after.strftime("%d.%m.%Y")


@case(with_x(1, 2))
def date_and_time(x, n):
    utc = datetime.timezone.utc
    start = datetime.datetime(2024, 5, 1, 12, n, tzinfo=utc)
    span = datetime.timedelta(hours=n, seconds=30)
    later = start + span
    return x * span.total_seconds(), later, later.isoformat(), span / 2, later.timestamp()


@case(with_x("2024-03-01", "2023-12-31T10:20"))
def parsed_dates(x, text):
    when = datetime.datetime.fromisoformat(text)
    return x * when.month, when, calendar.monthrange(when.year, when.month)


# Numbers.


@case(with_x("1.10", "2.5"))
def decimals(x, text):
    price = decimal.Decimal(text)
    total = price * 3 + decimal.Decimal("0.05")
    rounded = total.quantize(decimal.Decimal("0.1"), rounding=decimal.ROUND_HALF_UP)
    return x * float(total), total, rounded, price.as_tuple(), price < total


@case(with_x(3, 28))
def decimal_context(x, digits):
    with decimal.localcontext() as context:
        context.prec = digits
        third = decimal.Decimal(1) / decimal.Decimal(3)
    return x * float(third), third, decimal.Decimal(1) / 3


@case(with_x(decimal.Decimal("1.5"), decimal.Decimal("-2")))
def decimal_argument(x, value):
    return x * int(value), value + 1, -value, abs(value), value.is_signed(), str(value)


@case(with_x(2, 3))
def rationals(x, n):
    part = fractions.Fraction(1, n) + fractions.Fraction("3/4")
    return x * float(part), part, part.numerator, part.limit_denominator(5), part**2, part > 1


@case(with_x(fractions.Fraction(1, 3), fractions.Fraction(5, 2)))
def rational_argument(x, value):
    return x * value.denominator, value * 2, round(value), divmod(value, 1), hash(value)


@case(with_x([1, 2, 3, 4], [1.5, 2.5, 2.5, 2.75]))
def statistics_of(x, data):
    mean = statistics.mean(data)
    return (
        x * mean,
        statistics.median(data),
        statistics.pstdev(data),
        statistics.fmean(data),
        statistics.mode(data),
        statistics.variance(data),
    )


@case(with_x(2.0, 0.5))
def mathematics(x, v):
    a = math.sqrt(v) + math.log(v) + math.hypot(v, 1)
    b = math.prod([v, 2]), math.isclose(v, 2.0), math.fsum([v] * 3), math.dist([0], [v])
    return x * a, b, math.gcd(12, 18), math.comb(5, 2), math.frexp(v), cmath.sqrt(-v), math.inf


@case(with_x(-1.0, 4.0))
def mathematics_fails(x, v):
    try:
        return x * math.sqrt(v)
    except ValueError as error:
        return x, str(error)


@case(with_x(1, 2.5, True, "a"))
def abstract_numbers(x, v):
    kinds = numbers.Number, numbers.Real, numbers.Integral
    return x, [isinstance(v, kind) for kind in kinds]


@case(with_x([3, 1, 2], [1, 1]))
def operators(x, items):
    add = operator.add(x, 1)
    biggest = max(items, key=operator.neg)
    called = operator.methodcaller("count", 1)(items)
    operator.setitem(items, 0, 9)
    operator.iadd(items, [4])
    return add, biggest, called, operator.itemgetter(0, -1)(items), operator.attrgetter("T")(x)


@case(with_x([3, 1, 2], [1, 1]))
def more_operators(x, items):
    found = operator.contains(items, 1), operator.countOf(items, 1), operator.indexOf(items, 1)
    operator.delitem(items, 0)
    return operator.matmul(x, x.T), found, operator.concat(items, [1]), operator.length_hint(items)


# Text.


@case(with_x("world", "a b"))
def templates(x, name):
    template = string.Template("hello $name, ${name}!")
    made = template.substitute(name=name), template.safe_substitute({})
    return (
        x,
        made,
        string.ascii_letters[:3],
        string.capwords(name),
        string.Formatter().format("{0}", 1),
    )


@case(with_x("a1b22", "none", "7"))
def expressions(x, text):
    numbers = [int(found) for found in re.findall(r"\d+", text)]
    first = re.search(r"(?P<letter>[a-z])(\d)", text)
    groups = (first.group("letter"), first.span(), first.groupdict()) if first else None
    split = re.split(r"\d", text)
    return x * sum(numbers), groups, split, re.sub(r"\d", lambda m: m[0] * 2, text), re.escape(text)


LETTERS = re.compile("[a-z]+")


@case(with_x("ab12", "12", "cd"))
def compiled_expression(x, text):
    if found := LETTERS.match(text):
        x = x * found.end()
    return x, LETTERS.fullmatch(text) is not None, [m.start() for m in LETTERS.finditer(text)]


@case(with_x({"a": 1}, [1, None, True], "text"))
def as_json(x, value):
    text = json.dumps(value)
    back = json.loads(text)
    return x * len(text), text, back, json.dumps({"v": value, "b": 1}, sort_keys=True, indent=2)


@case(with_x('{"scale": 2}', '{"scale": 3, "name": "x"}', "{"))
def from_json(x, text):
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        return x, str(error)
    return x * settings["scale"], settings


@case(with_x("one two three four", "a"))
def wrapped_text(x, text):
    return x, textwrap.fill(text, 9), textwrap.dedent("  a\n  b"), textwrap.shorten(text, 12)


@case(with_x("abc", "abd"))
def compared_text(x, text):
    ratio = difflib.SequenceMatcher(None, text, "abc").ratio()
    return x * ratio, difflib.get_close_matches(text, ["abc", "xyz"])


@case(with_x(1, 2))
def names(x, n):
    made = uuid.UUID(int=n)
    return x, str(made), made.hex, uuid.uuid5(uuid.NAMESPACE_DNS, str(n))


# Containers.


@case(with_x(["a", "b", "a"], []))
def counters(x, words):
    counted = collections.Counter(words)
    counted.update("ab")
    counted.subtract(["b"])
    total = counted + collections.Counter(a=1)
    return x * counted["a"], counted.most_common(1), total, list(counted.elements()), +counted


@case(with_x({"a": 1}, {"b": 2}))
def chained_maps(x, first):
    chained = collections.ChainMap(first, {"a": 5, "b": 6})
    child = chained.new_child({"c": 7})
    child["d"] = 8
    chained["z"] = 9
    return x * chained["a"], dict(child), child.maps, sorted(chained), first


@case(with_x([1, 2, 3], [4]))
def user_containers(x, items):
    class Squares(collections.UserList):
        def total(self):
            return sum(self.data)

    class Lower(collections.UserDict):
        def __setitem__(self, key, value):
            super().__setitem__(key.lower(), value)

    table = Lower({"A": 1})
    table.update(B=2)
    return x * Squares(items).total(), dict(table), collections.UserString("ab").upper()


@case(with_x(1, 2))
def ordered(x, n):
    made = collections.OrderedDict(a=x, b=n)
    made.move_to_end("a")
    key, value = made.popitem(last=False)
    table = collections.defaultdict(list)
    table["k"].append(x * n)
    return made, key, value, table["k"], collections.deque([1, 2, 3], maxlen=2)


@scenario(lambda: [(t(2), decimal.Decimal(2)), (t(2), decimal.Decimal(3))])
def values_of_classes():
    class Money:
        unit = decimal.Decimal("0.5")
        since = datetime.date(2020, 1, 1)

    def program(x, amount):
        return x * float(Money.unit * amount), Money.since.year

    return program


@case(only(datetime.timedelta(days=1), datetime.timedelta(hours=2)))
def span_argument(span):
    return span.total_seconds(), span * 2, span // datetime.timedelta(minutes=7), str(span)

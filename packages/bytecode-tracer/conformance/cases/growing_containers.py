"""Lists, tuples, deques and texts that grow, shrink or change over breaks in loops."""

from __future__ import annotations

import collections
import time

import torch

from conformance.declare import case, t

BREAKS_MEANT = True


def _counts():
    return [(t(2), n) for n in (3, 9, 0, 1, 2, 14)]


def _lists():
    return [(t(2), list(range(n))) for n in (1, 4, 0, 2, 7, 3)]


def _rows():
    sets = []
    for n in (2, 1, 4, 3):
        row = [0]
        sets.append((t(2), [row] * n))
        sets.append((t(2), [[k] for k in range(n)]))
    return sets


# Lists that grow.


@case(_counts)
def last_of_a_list(x, n):
    made = [x]
    for k in range(n):
        made.append(made[-1] * 0.5 + k)
        time.sleep(0)
    return made


@case(_counts)
def last_two_of_a_list(x, n):
    made = [1, 1]
    for _ in range(n):
        made.append(made[-1] + made[-2])
        time.sleep(0)
        x = x + made[-1]
    return x, made


@case(_counts)
def number_of_elements(x, n):
    made = []
    while len(made) < n:
        made.append(x + len(made))
        time.sleep(0)
    return made, len(made)


@case(_counts)
def added_in_place(x, n):
    made = other = []
    for k in range(n):
        made += [x, k]
        time.sleep(0)
        other += (k,)
    return made, made is other


@case(_counts)
def added_by_parts(x, n):
    made = []
    for k in range(n):
        made.extend((x + k, k))
        time.sleep(0)
        made.extend(made[-1:])
    return made


@case(_counts)
def new_lists(x, n):
    made, kept = [], []
    for k in range(n):
        kept.append(made)
        made = [*made, k] if k % 3 == 2 else made + [x + k]
        time.sleep(0)
    return made, kept


@case(_counts)
def copies(x, n):
    made = [0]
    kept = []
    for k in range(n):
        other = made.copy()
        other.append(k)
        made.append(-k)
        time.sleep(0)
        other[-1] += 1
        kept.append(other)
    return x + len(made), made, kept


@case(_counts)
def whole_slices(x, n):
    made = []
    for k in range(n):
        made.append(k)
        other = made[:]
        rest = made[1:]
        other.append(x)
        time.sleep(0)
        x = x + len(rest)
    return x, made, other if n else None


@case(_counts)
def changed_last(x, n):
    made = [0.0]
    for k in range(n):
        made[-1] += k
        time.sleep(0)
        if k % 2:
            made.append(0.5)
    return x + made[-1], made


@case(_counts)
def changed_first(x, n):
    made = [x]
    for k in range(n):
        made[0] = made[0] + k
        made.append(k)
        time.sleep(0)
    return made


@case(_counts)
def put_in_front(x, n):
    made = []
    for k in range(n):
        made.insert(0, x + k)
        time.sleep(0)
        if k % 4 == 3:
            made.insert(1, made[-1])
            made.insert(-1, k)
    return made


@case(_counts)
def kept_short(x, n):
    made = []
    for k in range(n):
        made.append(k)
        if len(made) > 3:
            del made[0]
        time.sleep(0)
        x = x + made[0]
    return x, made


@case(_counts)
def sliding_window(x, n):
    last = []
    for k in range(n):
        last.append(k)
        last = last[-3:]
        time.sleep(0)
        x = x + sum(last)
    return last, x


@case(_counts)
def first_few(x, n):
    made = []
    for k in range(n):
        made.append(k)
        time.sleep(0)
        x = x + sum(made[:2]) + sum(made[-2:])
    return made, x


@case(_counts)
def in_itself(x, n):
    made = []
    for _ in range(n):
        made.append(made)
        time.sleep(0)
    return x + len(made), all(each is made for each in made)


@case(_counts)
def same_elements(x, n):
    row = [0]
    rows = []
    for k in range(n):
        rows.append(row)
        rows[0].append(k)
        x = x + len(rows[-1])
        time.sleep(0)
    return x, rows, row


@case(_counts)
def of_an_attribute(x, n):
    class Log:
        pass

    log = Log()
    log.items = []
    for k in range(n):
        log.items.append(x + k)
        log.last = log.items[-1]
        time.sleep(0)
    return log.items, n and log.last is log.items[-1]


@case(_counts)
def of_a_dict(x, n):
    made = {"loss": [], "step": [0]}
    for k in range(n):
        made["loss"].append(x + k)
        made["step"].append(made["step"][-1] + k)
        time.sleep(0)
    return made


@case(_counts)
def stacked_in_each_round(x, n):
    made = [x]
    for k in range(n):
        made.append(torch.stack(made).sum(0) + k)
        time.sleep(0)
    return made


@case(_counts)
def searched_and_compared(x, n):
    made = []
    for k in range(n):
        if k % 5 not in made:
            made.append(k % 5)
        time.sleep(0)
        x = x + (made == [0, 1]) + made.count(1) + made.index(0)
    return x, made


@case(_counts)
def sorted_and_reversed(x, n):
    made = []
    for k in range(n):
        made.append(k * 7 % 5)
        time.sleep(0)
        if k % 3 == 2:
            made.sort()
        else:
            made.reverse()
    return x, made


@case(_counts)
def cleared(x, n):
    made = []
    for k in range(n):
        made.append(k)
        time.sleep(0)
        if k % 4 == 3:
            made.clear()
    return x + len(made), made


@case(_counts)
def searched_further(x, n):
    made = [[0], (1, [2])]
    for k in range(n):
        made = [[*part, k] if isinstance(part, list) else (*part, k) for part in made]
        time.sleep(0)
        made[1][1].append(x)
    return made


@case(_counts)
def joined_branches(x, n):
    beams = [([0], 0.0), ([1], 0.5)]
    for k in range(n):
        beams = [(tokens + [k], score + 0.5) for tokens, score in beams]
        beams.sort(key=lambda each: -each[1])
        time.sleep(0)
        x = x + beams[0][0][-1]
    return beams, x


# Lists that are taken from.


@case(_counts)
def taken_from_the_front(x, n):
    todo = list(range(n))
    while todo:
        x = x + todo.pop(0)
        time.sleep(0)
    return x, todo


@case(_counts)
def taken_from_the_end(x, n):
    todo = [x + k for k in range(n)]
    while len(todo):
        x = x * 0.5 + todo.pop()
        time.sleep(0)
    return x, todo


@case(_counts)
def work_queue(x, n):
    todo, done = [0], []
    while todo:
        k = todo.pop(0)
        done.append(k)
        time.sleep(0)
        x = x + k
        if 2 * k + 2 < n:
            todo += [2 * k + 1, 2 * k + 2]
    return x, done


@case(_counts)
def taken_until_empty(x, n):
    todo = list(range(n))
    try:
        while True:
            x = x + todo.pop(-1 if n % 2 else 0)
            time.sleep(0)
    except IndexError as error:
        return x, str(error), todo


@case(_counts)
def taken_past_the_end(x, n):
    todo = list(range(n))
    found = []
    for place in (0, -1, 1, -2, 3):
        time.sleep(0)
        try:
            found.append(todo[place])
            del todo[place]
        except IndexError as error:
            found.append(str(error))
    return x, todo, found


@case(_lists)
def ends_of_a_list(x, values):
    if values:
        values[0], values[-1] = values[-1] + 10, values[0] + 20
    values.append(len(values))
    return x + len(values)


@case(_lists)
def moved_from_front_to_end(x, values):
    if values:
        values.append(values.pop(0))
        values.insert(0, values.pop())
        values.append(values.pop(0))
    return x * 2


@case(_lists)
def ends_of_a_list_that_is_printed(x, values):
    values.append(7)
    print(values[-1], len(values))
    values.pop()
    print(len(values) > 2, bool(values))
    return x + len(values)


@case(_lists)
def taken_in_the_middle(x, values):
    values += [7, 8]
    found = values.pop(1)
    values.insert(2, found)
    return x + found


@case(_rows)
def rows_that_may_be_one(x, rows):
    rows[0].append(5)
    first = len(rows[0])
    rows[-1].append(6)
    rows.append([1])
    return x + first + len(rows[-2]), rows[0] is rows[-2]


@case(lambda: [(t(2), tuple(range(n))) for n in (1, 3, 2, 5, 0)])
def tuples_of_the_caller(x, values):
    more = (*values, 1) if len(values) > 2 else values + (1, 2)
    return x + more[-1], more, values + (), () + values, more[0]


@case(lambda: [(t(2), [t(3) + k for k in range(n)]) for n in (1, 3, 2, 5)])
def tensors_in_a_list(x, values):
    values[-1].add_(1)
    values[0].mul_(2)
    values.append(x * 2)
    return values[-1] + 1, values[-2].sum()


# Tuples.


@case(_counts)
def growing_tuple(x, n):
    made, kept = (), []
    for k in range(n):
        made += (x + k,)
        kept.append(made)
        time.sleep(0)
    return made, kept, n and made[-1] is kept[-1][-1]


@case(_counts)
def tuple_from_the_front(x, n):
    made = (0,)
    for k in range(n):
        made = (k,) + made
        time.sleep(0)
        x = x + made[0] + len(made)
    return made, x


@case(_counts)
def unpacked_tuple(x, n):
    made = (1, 2)
    for k in range(n):
        first, *rest = made
        made = (*rest, first, k)
        time.sleep(0)
    return x, made


@case(_counts)
def linked_tuples(x, n):
    made = None
    for k in range(n):
        made = (x + k, made)
        time.sleep(0)
    found = []
    while made is not None:
        value, made = made
        found.append(value)
    return found


# Deques.


@case(_counts)
def deque_at_both_ends(x, n):
    made = collections.deque([x])
    for k in range(n):
        made.appendleft(k)
        made.append(made[-1] + made[0])
        time.sleep(0)
        if k % 3 == 2:
            made.popleft()
    return list(made), len(made)


@case(_counts)
def deque_as_a_queue(x, n):
    todo = collections.deque(range(n))
    while todo:
        x = x + todo.popleft()
        time.sleep(0)
        if todo and todo[-1] == 2:
            todo.pop()
    return x, todo


@case(_counts)
def deque_with_a_limit(x, n):
    made = collections.deque(maxlen=3)
    for k in range(n):
        made.append(x + k)
        time.sleep(0)
        if k % 5 == 4:
            made.appendleft(k)
    return list(made), made.maxlen


@case(_counts)
def deque_that_turns(x, n):
    made = collections.deque([1, 2])
    for k in range(n):
        made.rotate(1)
        made.extend([k, k + 1])
        time.sleep(0)
        x = x + made[0]
    return list(made), x


# Texts.


@case(_counts)
def growing_text(x, n):
    log = "begin:"
    for k in range(n):
        log += f" step {k}"
        time.sleep(0)
        x = x + len(log)
    return log, x


@case(_counts)
def text_of_numbers(x, n):
    log = ""
    for _ in range(n):
        x = x * 0.5
        log = log + f"{x.sum().item():.3f};"
    return log, x


@case(_counts)
def printed_texts(x, n):
    for k in range(n):
        x = x * 0.5
        print(f"step {k}: {x.sum().item():.3f}")
        print("sum", k, x.sum().item() > 0.1)
    return x


@case(_counts)
def asked_text(x, n):
    log, found = "", []
    for k in range(n):
        log += "ab"[k % 2]
        time.sleep(0)
        found.append(
            (log.upper()[-2:], log.count("a"), "ba" in log, log.startswith("a"), log[-1], not log)
        )
        if log == "aba":
            x = x + 1
        if log > "abab":
            x = x * 2
    return x, found, log.split("b")


@case(_counts)
def text_as_a_key(x, n):
    made, name = {}, ""
    for k in range(n):
        name += str(k % 3)
        time.sleep(0)
        made[name] = x + k
        x = x + len(made)
    return made


@case(_counts)
def text_as_a_number(x, n):
    digits = "1"
    for k in range(n):
        digits = digits[-2:] + str(k % 10)
        time.sleep(0)
        x = x + int(digits) + float(digits)
    return x, digits


@case(_counts)
def text_of_a_call(x, n):
    kinds = ("sum", "mean", "prod")
    for k in range(n):
        kind = kinds[k % 3]
        time.sleep(0)
        x = x + getattr(x, kind)() * 0.1
        x = x + torch.nn.functional.pad(x, (0, 0), mode="constant" if kind == "sum" else "constant")
    return x


@case(_counts)
def text_for_torch(x, n):
    x = torch.stack([x, x + 1])
    for k in range(n):
        equation = ("ij,ij->ij", "ij,kj->ik", "ij,ij->i")[k % 3]
        time.sleep(0)
        x = x + torch.einsum(equation, x, x).sum() * 0.01
    return x


@case(_counts)
def formatted_in_other_ways(x, n):
    log = ""
    for k in range(n):
        log = "%s %d" % (log[-3:], k)
        time.sleep(0)
        log = "{}|{:>3}".format(log, k)
        time.sleep(0)
        log = "-".join([log, str(k)])
        time.sleep(0)
    return x, log


@case(_counts)
def growing_bytes(x, n):
    log = b""
    for k in range(n):
        log += b"ab" if k % 2 else b"c"
        time.sleep(0)
        x = x + len(log)
    return x, log, log.decode()


@case(_counts)
def text_and_bytes(x, n):
    log = ""
    for k in range(n):
        log += "a"
        time.sleep(0)
        if k == 4:
            try:
                log += b"b"
            except TypeError as error:
                log += str(error)
    return x, log


@case(_counts)
def text_in_an_error(x, n):
    log = ""
    for k in range(n):
        log += str(k)
        time.sleep(0)
        try:
            raise ValueError(log)
        except ValueError as error:
            x = x + len(str(error))
            if k == 8:
                raise KeyError(log) from error
    return x


@case(_counts)
def identity_of_texts(x, n):
    log = ""
    for k in range(n):
        before = log
        log += "" if k % 2 else "z"
        time.sleep(0)
        x = x + (log == before) + (log is None)
    return x, log

"""Every cause of a graph break, with what it means, what to change, and an example."""

from __future__ import annotations

from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class BreakKind:
    """A stable code for a cause of graph breaks. Codes are never given again."""

    code: str
    title: str
    hint: str
    """What to change."""
    meaning: str
    """What happens, and why it ends the graph."""
    example: str = ""
    """Python that defines `function`, which breaks with this code when called with a tensor."""


def _table(*kinds: BreakKind) -> dict[str, BreakKind]:
    made: dict[str, BreakKind] = {}
    for kind in kinds:
        if kind.code in made:
            raise ValueError(f"graph break {kind.code} is declared twice")
        made[kind.code] = kind
    return made


BREAKS = _table(
    BreakKind(
        "GB0001",
        "statement that is not traced",
        "Move the statement out of the compiled function.",
        "The tracer has no rule for the bytecode of this statement, or the statement runs too "
        "long without a tensor operation to be followed. It runs as plain Python, and the code "
        "after it is compiled again.",
        """
        def function(x):
            total = 0
            for step in range(200_000):
                total += step
            return x + total
        """,
    ),
    BreakKind(
        "GB0002",
        "call that cannot be traced",
        "Call it outside of the compiled function, or register it as a custom op.",
        "The function is written in C, belongs to another library's state, or does something "
        "that a graph cannot hold. It is called as it is, between two graphs.",
        """
        import time


        def function(x):
            return x * 2 + time.time()
        """,
    ),
    BreakKind(
        "GB0003",
        "branch on the value of a tensor",
        "Use torch.where or torch.cond, or move the branch out of the compiled function.",
        "Which way the code goes depends on data that only the graph's run gives. The graph "
        "ends here; each way that is taken is compiled as a graph of its own. Where one way only "
        "raises, the graph checks that the other is taken, and there is no break, unless what came "
        "before in the graph could not be undone, as a tensor of the caller's that is changed.",
        """
        def function(x):
            if x.sum() > 0:
                return x + 1
            return x - 1
        """,
    ),
    BreakKind(
        "GB0004",
        "value of a tensor needed in Python",
        "Keep the value in a tensor, or read it outside of the compiled function.",
        "Python asks for the number inside a tensor: a list index, a range, a key, a format "
        "string, the strides of a tensor whose size depends on data, or a size that an operator "
        "must know. The graph has to run first. Arithmetic on what item() gives, and sizes as "
        "nonzero() gives them, stay in the graph.",
        """
        def function(x):
            return [x] * int(x.max())
        """,
    ),
    BreakKind(
        "GB0005",
        "output to the world",
        "Print or log outside of the compiled function, or print constants only.",
        "What is printed, logged, read or written depends on values that only the graph's run "
        "gives, or on the state of the world. Constants are printed and logged after the graph "
        "has run, without a break, unless code of the program's sees them: a stream, a handler or "
        "a formatter of its own.",
        """
        def function(x):
            y = x + 1
            print("sum", y.sum())
            return y * 2
        """,
    ),
    BreakKind(
        "GB0006",
        "exception raised",
        "Nothing to change if the exception is meant.",
        "The code raises an exception that nothing in the traced code handles. What came before "
        "is compiled; Python raises it, with the user's own lines in its traceback.",
        """
        def function(x):
            if x.dim() == 1:
                raise ValueError("one dimension is too few")
            return x
        """,
    ),
    BreakKind(
        "GB0007",
        "attribute that cannot be traced",
        "Read it outside of the compiled function.",
        "The attribute is computed by C code, changes with what ran before, as `_version` does, or "
        "is intercepted in a way that is not followed.",
        """
        def function(x):
            return x * 2 if x._version else x
        """,
    ),
    BreakKind(
        "GB0008",
        "operation that fails on these operands",
        "See the error that eager raises; a shape that depends on data breaks here as well.",
        "The operation raises an error for operands of these shapes and dtypes, or its result's "
        "shape depends on data in a way that the graph cannot hold: where something has been done "
        "by then that could not be undone, if what the graph assumes of the shape is wrong. Python "
        "runs it, and raises what eager raises.",
        """
        def function(x):
            try:
                return x.view(3, 5)
            except RuntimeError:
                return x
        """,
    ),
    BreakKind(
        "GB0009",
        "object that cannot be traced",
        "Pass tensors, numbers, plain containers or objects of Python classes.",
        "An object of a class that C defines, a tensor subclass of which the trace cannot tell "
        "what its code depends on, or a live value that cannot be made again after the graph.",
        """
        import array


        def function(x):
            return x * array.array("f", [7.0])[0]
        """,
    ),
    BreakKind(
        "GB0011",
        "asynchronous function, or generator that runs",
        "Compile what the function calls, not the asynchronous function itself.",
        "A compiled coroutine function, and all asynchronous generators, run as plain Python. "
        "Coroutines and generators that traced code makes are followed, also half-consumed "
        "ones; but not where they leave it while they run, nor a coroutine that nothing awaits.",
        """
        def function(x):
            async def rows():
                yield x * 2

            return rows()
        """,
    ),
    BreakKind(
        "GB0012",
        "fault of the tracer",
        "Please report it, with the function and its arguments; the call ran eagerly.",
        "The tracer itself failed. The call runs as plain Python, and gives what it should.",
    ),
    BreakKind(
        "GB0013",
        "function that looks into its caller's frame",
        "Name the values instead of asking for the frame's variables.",
        "sys._getframe() and its like see the frames that call them, as does eval() of code that "
        "cannot be traced. Only Python's own frames have what they look at, so the frame runs as "
        "plain Python.",
        """
        import sys


        def function(x):
            y = x + 1
            return sys._getframe().f_locals["y"] * 2
        """,
    ),
    BreakKind(
        "GB0014",
        "object whose end is told",
        "Make and drop the object outside of the compiled function; close the generator.",
        "Something happens when the last reference to it goes: its class defines __del__, a weak "
        "reference to it has a callback, or it is a generator that waits inside a try or with "
        "statement. What a compiled call keeps for itself would delay that, so the whole call "
        "runs as plain Python.",
        """
        class Counted:
            alive = []

            def __init__(self):
                self.alive.append(1)

            def __del__(self):
                self.alive.pop()


        def function(x):
            counted = Counted()
            y = x + len(counted.alive)
            del counted
            return y
        """,
    ),
    BreakKind(
        "GB0015",
        "NumPy function that is not captured",
        "Use a function that is captured, or the like one of torch.",
        "Arrays of NumPy are tensors in the graph, and many of NumPy's functions are captured; "
        "this one is not, or not with these arguments. It runs as it is, between two graphs. So "
        "do functions whose results NumPy leaves open, and random numbers, whose state is "
        "NumPy's own.",
        """
        import numpy as np


        def function(x):
            return x + float(np.random.rand())
        """,
    ),
    BreakKind(
        "GB0016",
        "array that is not captured",
        "Pass arrays that can be written to, of bools, signed integers, uint8 or floats.",
        "Torch has no tensor over the memory of such an array: its elements are objects, texts, "
        "dates, records or of another byte order, it is read-only, or it runs backwards through "
        "its memory. What is done to it runs as it is, between two graphs.",
        """
        import numpy as np

        names = np.array(["a", "b"])


        def function(x):
            return x * len(names[x.dim() - 1 :])
        """,
    ),
    BreakKind(
        "GB0017",
        "program that watches what is alive",
        "Make the reference, or ask the collector, outside of the compiled function.",
        "A weak reference to an object that the program may drop, the count of an object's "
        "references, its size in memory, or the id of one that is gone: how long objects live, "
        "and where, only Python itself tells. The whole call runs as plain Python. Weak "
        "references that the caller has made are followed, as is weakref.ref() of what the "
        "caller keeps alive, and of what the function holds where it asks.",
        """
        import weakref


        class Thing:
            pass


        def function(x):
            thing = Thing()
            reference = weakref.ref(thing)
            del thing
            return x * 2 if reference() is None else x
        """,
    ),
    BreakKind(
        "GB0018",
        "change of the interpreter itself",
        "Make the change outside of the compiled function.",
        "A lower recursion limit leaves the tracer itself no room, other thresholds of the garbage "
        "collector let it run within the tracer all the time, and functions that test the "
        "interpreter change objects in ways that nothing shows. The whole call runs as plain "
        "Python.",
        """
        import sys


        def function(x):
            sys.setrecursionlimit(sys.getrecursionlimit())
            return x * 2
        """,
    ),
    BreakKind(
        "GB0019",
        "custom operator without a fake kernel",
        'Register one: `@torch.library.register_fake("namespace::name")` over a function of the '
        "same arguments that returns `torch.empty_like(x)`, or whatever tells the result's shape "
        "and dtype.",
        "A trace must know the shape and dtype of what an operator returns without running it. "
        "An operator of torch.library tells them by its fake kernel. Where it has none, the "
        "operator is called as it is, between two graphs. With one it becomes a node of the "
        "graph, with its gradients and the arguments that it changes.",
        """
        import torch

        if not hasattr(torch.ops.graph_breaks, "doubled"):

            @torch.library.custom_op("graph_breaks::doubled", mutates_args=())
            def doubled(x: torch.Tensor) -> torch.Tensor:
                return torch.tensor(x.tolist()) * 2


        def function(x):
            return torch.ops.graph_breaks.doubled(x) + 1
        """,
    ),
    BreakKind(
        "GB0020",
        "value that changes from call to call",
        "Pass what does not change, or do what needs the value outside of the compiled function.",
        "A number, a text or the number of elements of a list was another in each call, and the "
        "code needs it: for an index, a key, a name, or to go through all elements. The first "
        "values get specialisations of their own. The last one that is allowed (in what follows "
        "a break, the last half of them) assumes none: Python does what needs the value, between "
        "two graphs.",
        """
        calls = [0]
        rows = list(range(100))


        def function(x):
            calls[0] += 1
            return x + rows[calls[0]]
        """,
    ),
)
"""Every cause of a graph break by its code."""

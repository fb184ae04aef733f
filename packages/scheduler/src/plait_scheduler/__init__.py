"""Fusion, ordering and memory planning of loop IR into executable programs."""

from plait_scheduler._version import __version__
from plait_scheduler.decisions import Decision, DecisionKind, explain
from plait_scheduler.errors import ProgramError, ProgramSyntaxError
from plait_scheduler.memory import ArenaPlan, Lifetime, plan_arena
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.phases import Phase, phases, row_scratch
from plait_scheduler.program import (
    Access,
    Allocate,
    ArenaStorage,
    CallExtern,
    CopyBack,
    Domain,
    ExternStorage,
    Free,
    InputStorage,
    Kernel,
    Launch,
    Let,
    OutputStorage,
    Param,
    Program,
    ProgramBuffer,
    Reduce,
    Return,
    SharedStorage,
    Statement,
    Step,
    Storage,
    Store,
)
from plait_scheduler.render import (
    KernelRenderer,
    RenderedKernel,
    load_python,
    render_python,
    torch_kernel,
)
from plait_scheduler.schedule import Schedule, plan, schedule
from plait_scheduler.text import (
    parse_kernel,
    parse_program,
    print_kernel,
    print_program,
    print_value,
)
from plait_scheduler.verifier import verify_kernel, verify_program

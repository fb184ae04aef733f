from plait_scheduler.program import Program
def verify_program(program: Program) -> None:
    pass

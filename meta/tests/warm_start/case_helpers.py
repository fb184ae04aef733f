"""What the cases inline from another file; a test edits this one."""


def shifted(x):
    return x * 0.25


def edited(x):
    return x.sin()

"""What the cases inline from another file; a test edits this one."""


def edited(x):
    return x.sin()

"""What the cases inline from another file, which stays as it is."""


def shifted(x):
    return x * 0.25

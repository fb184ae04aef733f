"""Python's object model and operators over tracked values."""

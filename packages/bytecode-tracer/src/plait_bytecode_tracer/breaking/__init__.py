"""Graph breaks: what runs for real, and the functions that go on after it."""

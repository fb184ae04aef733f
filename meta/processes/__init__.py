"""Programs of several processes, compiled, against eager."""

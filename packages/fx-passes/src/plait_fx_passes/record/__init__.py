"""Recording a running program as a functional ATen graph: dispatch mode, aliases, rules."""

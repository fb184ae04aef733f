"""The graph that a trace builds: its nodes, what they return and what they change."""

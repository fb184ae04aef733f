"""Random programs of ATen operators, compiled stage by stage and compared with eager."""

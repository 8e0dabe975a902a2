"""A checkpoint on its way to the run's resume point: validation, the quality gate, what changed since the last one."""

"""A run that is killed on purpose beside one that is not: the plan, what both left, and the comparison that decides."""

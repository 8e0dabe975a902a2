"""A checkpoint that a person wants evaluated, beside the run: on any split, or on a table of their own with labels."""

"""From the step to its batch: the order of samples, the cut into leaves, their seeds, and what was consumed.

Pure functions of seed, epoch and step, but for `samples.py`, which reads shards.
"""

"""From a data set's shards to samples: their order, and reading them.

What stands where is a pure function of seed, epoch and position; nothing that is read is state.
"""

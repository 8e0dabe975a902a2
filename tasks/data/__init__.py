"""From a source to a data set: split, statistics, tokeniser, shards, and what differs between two data sets.

`pipeline.py` is the way in: one call that returns the published data set of a configuration.
"""

"""Generated corpora to try things on: the same bytes for the same seed, at any size in constant memory.

`generate.py` is the way in.
"""

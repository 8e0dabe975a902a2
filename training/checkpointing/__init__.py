"""One save and one restore: the copy at a boundary, the thread that writes it, and reading it back.

Invariant: the bytes of a checkpoint are the same on any number of ranks.
"""

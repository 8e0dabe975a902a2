"""Whether the ledger is right: the chain of parts, their segments, the order, how often each sample was used.

`verdict.py` is the way in.
"""

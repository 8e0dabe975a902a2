"""Whether the ledger says what it must: the chain of parts, their segments, the order, how often each sample was used.

`verdict.py` is the way in.
"""

"""The work of a preparation, cut into units: what each is, what it leaves, and where that is kept.

A unit takes some rows of the source, or writes some shards. What a unit left is in the store, and is not made again.
"""

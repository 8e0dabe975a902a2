"""Source files that are not Parquet on this machine: fetched, or read row by row, and made that for all that follows.

Nothing in here writes to the store.
"""

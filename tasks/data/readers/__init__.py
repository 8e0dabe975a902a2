"""Source files of formats other than Parquet: read row by row or batch by batch, and made Parquet for all that follows.

Nothing in here writes to the store.
"""

"""The user's own tables: which files, which columns in one form for SQL, and the contract that no row may break.

Nothing in here writes to the store.
"""

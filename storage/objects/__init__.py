"""Immutable objects under keys: the `Store` protocol, over a folder or a bucket; hashes, addresses, local copies."""

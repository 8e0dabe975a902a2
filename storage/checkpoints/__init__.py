"""Checkpoints: files first, then the index of their hashes; verified, read again, and deleted in one way."""

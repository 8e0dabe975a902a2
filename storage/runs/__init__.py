"""What is remembered of a run: the manifest and what may happen to it, the ledger, segments, leases, retention."""

"""Everything that must be durable: stores, the manifest, checkpoints, data sets."""

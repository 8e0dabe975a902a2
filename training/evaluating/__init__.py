"""A checkpoint on one split: its metrics, how far its probabilities can be believed, and thresholds to act on."""

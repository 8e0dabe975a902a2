"""A segment while it lives: launching its ranks, signs of life, hangs, stragglers, logs."""

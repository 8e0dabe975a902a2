"""The terminal: progress, messages, tables."""

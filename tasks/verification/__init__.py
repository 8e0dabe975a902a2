"""Checkpoints that cannot be read as they were written: verdicts, quarantine, and scrubs that look for rot."""

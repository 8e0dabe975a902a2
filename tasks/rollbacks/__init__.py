"""Rollbacks that a person asks for."""

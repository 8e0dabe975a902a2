"""From a TOML file and `--set` to a configuration, and back to a TOML file with every field.

Owns what a person is told about a mistake in either.
"""

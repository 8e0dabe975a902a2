"""The sections of a configuration file, a module each; every field with its description and its default."""

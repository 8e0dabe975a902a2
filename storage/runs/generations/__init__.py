"""What a generation of the manifest has in itself, and what it has in parts beside it."""

"""What a run keeps of its configuration whatever its file says: what it had to adapt, and what a person gave it."""

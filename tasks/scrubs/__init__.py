"""Looking for rot in everything that is kept: what is read, what counts as damage, what becomes of it."""

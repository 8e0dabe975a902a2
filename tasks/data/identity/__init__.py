"""Whether the source is what it was: the hashes of its files, what a listing says of them, a run that was begun."""

"""Whether the source is what it was: the hashes of its files, what a listing gives of them, a run that was begun."""

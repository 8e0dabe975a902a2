"""What a checkpoint is that could not be read as it was written, and what follows from it."""

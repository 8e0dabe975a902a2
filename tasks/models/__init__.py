"""A trained model for its users: the checkpoint, its evaluation, its export, what a new run takes of it."""

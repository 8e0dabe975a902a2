"""A trained model for whoever uses it: the checkpoint, its evaluation, its export, what a new run takes of it."""

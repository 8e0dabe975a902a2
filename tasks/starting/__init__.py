"""A new run that begins with the weights of another one, or of an exported model."""

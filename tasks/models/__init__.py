"""A trained model for whoever uses it: which checkpoint it is taken from, and the folder that it is exported to."""

"""The classifier, its loss, its number formats and its compilation."""

"""Requests to an S3 bucket, what failures mean, transfers; the `Store` protocol over a prefix; a source's objects as files."""

"""The `Store` protocol over a prefix of an S3 bucket: requests, transfers, and what failures mean."""

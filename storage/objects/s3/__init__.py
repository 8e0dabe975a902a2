"""A bucket: requests, what failures mean, transfers, objects read as files; the `Store` protocol over a prefix."""

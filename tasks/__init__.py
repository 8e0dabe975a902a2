"""One Prefect task each: prepare, recover, segment, promote, evaluate, report."""

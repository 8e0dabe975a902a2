"""One Prefect task each: prepare, recover, segment, promote, evaluate, audit, report and others; what they share."""

"""One Prefect task each: prepare, recover, segment, promote, evaluate, audit, report, scrub; what all of them share."""

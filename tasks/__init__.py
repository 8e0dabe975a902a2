"""One Prefect task each: prepare, recover, segment, evaluate, report, scrub; and what all of them share."""

"""One Prefect task each: prepare, recover, segment, promote, evaluate, audit, baseline, report, scrub; what all of them share."""

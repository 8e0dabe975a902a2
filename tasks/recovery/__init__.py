"""Between two segments: a segment that was lost, rollbacks, and what only a person may have a run do."""

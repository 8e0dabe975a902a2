"""Who may ask a segment to stop, and how that reaches its ranks without breaking off what is under way."""

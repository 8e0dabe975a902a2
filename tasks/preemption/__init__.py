"""Who may ask a segment to stop, from signals to notices of clouds, and how that reaches its ranks."""

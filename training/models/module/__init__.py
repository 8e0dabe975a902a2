"""A module of the user's own: what builds it, and what is asked of it before a run's first step."""

"""How a run goes back: because training diverged, or because a person asked for it."""

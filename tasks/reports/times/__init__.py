"""Where the time of a run went: how much of it made steps that its weights still have, and when."""

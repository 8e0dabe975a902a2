"""What a person gives a run, which stays until the configuration's file changes."""

"""What may change of a run's configuration, and what the run keeps whatever its file says."""

"""How a run's calibration is shown: two charts, a table, and what they say."""

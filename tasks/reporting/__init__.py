"""All that is drawn or written for a person to read: the run's page, charts, tables."""

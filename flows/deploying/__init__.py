"""What `holdfast deploy` puts on a Prefect server, and takes away: a run's deployment, and the automations of all."""

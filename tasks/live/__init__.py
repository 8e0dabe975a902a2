"""A run while it trains, for who looks from afar: the flow run's page in Prefect, and the report beside the run."""

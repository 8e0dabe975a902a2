"""All that knows Prefect's insides: its server, flow runs and their states, events, artifacts."""

"""What a person is told while a flow runs: messages, progress on the terminal, events on Prefect's server."""

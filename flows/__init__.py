"""What an operator runs: the command line and the flows that chain the tasks."""

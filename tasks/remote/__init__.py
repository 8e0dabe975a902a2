"""What is asked of a segment from elsewhere, by the store and by Prefect; what Prefect shows of a process that died."""

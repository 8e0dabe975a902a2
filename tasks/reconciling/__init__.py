"""What Prefect shows and does, and what people are told, made to follow from what the stores say of their runs."""

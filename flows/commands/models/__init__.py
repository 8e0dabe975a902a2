"""What a trained model is good for: it is evaluated, exported, and asked about a table."""

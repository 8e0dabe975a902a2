"""What runs in each rank, and the pure functions it is made of."""

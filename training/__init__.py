"""What runs under torchrun, and the pure functions it is made of."""

"""What a step needs of the device's memory, and what is said and done when there is not enough."""

"""What ranks print: how it goes to the store while they work, and what a person reads of it there."""

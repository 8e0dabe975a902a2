"""What goes on in a thread of its own while a block of the supervising process lasts."""

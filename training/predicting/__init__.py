"""What an exported model says about many rows, in bounded memory."""

"""Who announces that this machine will be taken away, behind one protocol, and what a segment makes of it."""

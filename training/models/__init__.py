"""Models and where they come from: what is asked of one, our own encoder, loss, number formats and compilation."""

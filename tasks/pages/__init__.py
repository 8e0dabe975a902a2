"""What every HTML page shares: the frame, the canvas that charts are drawn on, and the words for numbers and dates."""

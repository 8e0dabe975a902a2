"""AdamW, its learning rate as a function of the step, clipping, and the gradient scaler."""

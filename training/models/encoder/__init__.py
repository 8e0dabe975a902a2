"""Our own encoder: what training, export and `train.start_from` ask of a model, answered for it."""

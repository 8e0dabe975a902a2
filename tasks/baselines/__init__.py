"""A linear model on the tokens of a data set, which a network has to be better than to be worth its training."""

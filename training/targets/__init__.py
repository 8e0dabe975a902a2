"""Kinds of target: all that is computed differently for one than for another. Nothing else in training asks which."""

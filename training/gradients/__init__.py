"""The sum of the microbatches' gradients over all ranks: exact, in 64-bit fixed point, or fast, in floating point."""

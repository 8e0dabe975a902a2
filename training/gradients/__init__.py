"""The sum of the leaves' gradients over all ranks: exact, in 64-bit fixed point, or fast, in floating point."""

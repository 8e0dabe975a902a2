"""From samples to what each rank gets of a step: leaves, how they are padded, their seeds, and what was consumed."""

"""From samples to what each rank gets of a step: microbatches, their padding and seeds, and what was consumed."""

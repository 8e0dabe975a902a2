"""What is watched while training: loss curve, spikes, divergence, validation and its scores, reports."""

"""What is measured: loss curve, spikes, validation and its scores, calibration, reports of progress."""

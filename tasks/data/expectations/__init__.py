"""What is expected of a data set as a whole: its measures, suites of expectations, drift, and the verdict."""

"""What a person asks of a run in the form of `resume`: values that stay, and a rollback by hand."""

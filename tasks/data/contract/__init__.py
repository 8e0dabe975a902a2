"""The contract of the user's data: rules for every row, what the rows do, and what was found."""

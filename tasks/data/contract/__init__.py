"""The contract that the user's data must keep: its rules, what was measured, the judge, and the result that is kept."""

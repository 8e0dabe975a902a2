"""The commands of `holdfast` that look at a run or care for it; `flows/cli.py` lists all of them."""

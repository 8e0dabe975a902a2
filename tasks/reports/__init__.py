"""The page of a run: its charts, its tables and what they say. `run_page.py` is the way in."""

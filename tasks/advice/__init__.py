"""How often to save: what the run measured, what an interval costs, and what is recommended.

`measured.py` is the way in.
"""

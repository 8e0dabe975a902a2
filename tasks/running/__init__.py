"""A segment while it lives and when it ends: signs of life, promotion, the gate, rollbacks.

`supervision.py` watches the ranks; `settle.py` records what a segment left, from whichever process finds it.
"""

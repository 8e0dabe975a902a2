"""A segment while it lives and when it ends: ranks, signals, signs of life, promotion, the gate, rollbacks.

`ranks.py` launches and watches the processes; `settle.py` records what a segment left, from whichever process finds it.
"""

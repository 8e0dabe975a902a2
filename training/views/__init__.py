"""Views: which ranks train together, where they meet, and how those that are left go on without one that died.

Owns what an agent and its ranks write for each other about that, and the way of a rank from one view into the next.
"""

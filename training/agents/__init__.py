"""The ranks of one node, begun, watched and ended by a process of their own: the agent.

Owns how a rank is forked or begun, the locks by which ranks are found, and the account of how each of them ended.
"""

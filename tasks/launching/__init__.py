"""Where ranks run: on this machine or on the nodes of a cluster, behind one protocol.

`job.py` is the protocol; nothing outside this room asks which implementation it has.
"""

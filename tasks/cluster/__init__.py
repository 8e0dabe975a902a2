"""Where ranks run: on this machine or on the nodes of a cluster, behind one protocol."""

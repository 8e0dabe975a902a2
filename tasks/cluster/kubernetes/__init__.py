"""Segments as JobSets of a Kubernetes cluster, through its official client, which is loaded only where one is used."""

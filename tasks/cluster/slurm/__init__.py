"""Segments as jobs of a Slurm cluster, through its own commands."""

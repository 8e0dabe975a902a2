"""Files with the figures of a run, in its store beside it, for programs that read such files."""

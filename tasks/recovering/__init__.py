"""What a run never does by itself, and a person may have it do: go on from an entry before a damaged one."""

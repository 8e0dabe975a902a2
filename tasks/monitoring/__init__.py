"""What is watched from outside: figures over HTTP, of a segment while it runs and of all runs; and full disks."""

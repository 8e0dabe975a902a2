"""What is watched of a segment while it runs, from outside: its figures over HTTP, and full disks."""

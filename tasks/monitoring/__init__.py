"""What is watched of a segment while it runs, for whoever looks from outside: its figures over HTTP, and full disks."""

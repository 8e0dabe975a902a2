"""The commands: each a file of its own, with a function of the same name; what is typed, what it does, what it shows.

`flows.cli` finds a command by its file, and loads it when it is called or its help is asked for. What several share is
in `arguments.py` and `results.py`, which are no commands.
"""

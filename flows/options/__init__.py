"""What is typed: for each command its arguments, options and help.

What a command does is in `flows.commands`. It is imported when the command is called, for it needs libraries that take
seconds to import: help, and a mistake in what was typed, are answered at once.
"""

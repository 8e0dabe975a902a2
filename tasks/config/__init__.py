"""From a file to a configuration, and what a begun run keeps of its own whatever the file sets."""

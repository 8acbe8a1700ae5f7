"""The commands. Each module has one command with the same name."""

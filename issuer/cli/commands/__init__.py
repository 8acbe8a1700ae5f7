"""The commands of the command line. Each module contains one command with the name of the module."""

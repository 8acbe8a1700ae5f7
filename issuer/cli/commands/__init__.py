"""The commands of the command line. Each module contains one command, which has the name of the module."""

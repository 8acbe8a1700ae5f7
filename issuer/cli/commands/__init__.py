"""The commands of the command line. Each module has one command, which has the name of the module."""

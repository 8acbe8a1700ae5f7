"""The commands, one module for each: the group finds them here by their names."""

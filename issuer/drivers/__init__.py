"""What runs the protocol: connections, the callers of a process, the waiting. `blocking` for threads."""

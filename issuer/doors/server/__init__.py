"""The server behind `issuer serve`: a supervisor and its workers. Each worker serves HTTP and RESP over one issuer.

The supervisor has no threads and no connections, and forks the workers after all imports. So it replaces a dead worker
within milliseconds. It owns the listening sockets: until a new worker accepts them, connections wait and are not
refused. Each worker ends if the supervisor dies, because a pipe between them closes.
"""

"""The server behind `issuer serve`: a supervisor process, and the worker processes that it starts and replaces.

Each worker serves HTTP and RESP (the Redis protocol) with one issuer. The supervisor has no connections, and no other
thread than the one that writes its log. It forks the workers after all imports. So it replaces a dead worker within
milliseconds. It owns the listening sockets: until a new worker accepts them, connections wait and are not refused. If
the supervisor dies, its connection to each worker closes, and the worker ends.
"""

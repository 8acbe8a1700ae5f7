"""The server behind `issuer serve`: one process supervises workers, each of which serves HTTP and RESP over one issuer.

Workers are forked from a supervisor that has no threads and holds no connection: they begin with everything imported,
and one that died is replaced within milliseconds. The sockets are the supervisor's, so connections that come meanwhile
wait in place of being refused. A pipe whose other end the supervisor alone holds ends them with it.
"""

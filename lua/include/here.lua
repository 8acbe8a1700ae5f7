-- Sets `here`: the id of this node of a Cluster. False if this server is no node of a Cluster, or if the user may not run
-- CLUSTER MYID. INFO comes first: outside of a Cluster, the server would count each CLUSTER MYID as an error.
local here = string.find(redis.call('INFO', 'cluster'), 'cluster_enabled:1', 1, true) and redis.pcall('CLUSTER', 'MYID')
here = type(here) == 'string' and here

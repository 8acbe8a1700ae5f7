-- Sets `fenced`: true if the hash is from another term. Never compare the fence with master_replid2, the id of the previous
-- term: a new master shows it even if it lacks the last draws of that term. In a Cluster, a replica can become the master and
-- keep the master_replid of its master (docs/explain/fence.md). So there the hash also has the id of its node. Without the
-- right to run CLUSTER MYID, the reply is an error, a table, and the node is not compared.
local here = node and redis.pcall('CLUSTER', 'MYID')
local fenced = not fence or #fence ~= 40 or not string.find(info, '\nmaster_replid:' .. fence .. '\r', 1, true)
  or node and here ~= node and type(here) == 'string'

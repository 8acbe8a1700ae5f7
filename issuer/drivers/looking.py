"""Time to poll for a reply, wide awake, before sleeping: to be woken takes longer than a near Redis needs."""

#: Seconds: a reply comes within 20 us from this machine, 60 from the next one.
LOOK_OUT = 0.0001

#: After a look-out in vain this many calls do without: a server that is far away costs each of them 2 us.
FAR = 50

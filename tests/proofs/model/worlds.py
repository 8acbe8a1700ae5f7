"""The bounds that are searched: each guard that is left out shows its harm in one of them."""

from tests.proofs.model.state import World

#: Searched by `make check`: some seconds in all.
SMALL = {
    "a process crashes, replies are lost, keys are lost": World({"crash": 1, "lost": 1, "flush": 1}, step=2, highest=4),
    "Redis goes back to a snapshot": World({"snapshot": 1, "rollback": 1}, step=2, highest=4),
    "a lagging replica is promoted": World({"promote": 1}, nodes=2, step=2, highest=2),
    "a node of a Cluster takes over": World({"takeover": 1}, nodes=2, step=2, highest=2),
    "recovered under load": World({"recover": 1, "flush": 1}, step=1, highest=2),
    "leases, and a recovery": World({"recover": 1}, lease=2, strict=False, stops=True, processes=1, step=2, highest=4),
    "leases given back": World({"flush": 1}, lease=2, strict=False, stops=True, step=2, highest=4, processes=1),
    "leases given back, and a copy": World({"copy": 1}, lease=1, strict=False, stops=True, step=2, highest=2),
    "leases across a rollback": World(
        {"snapshot": 1, "rollback": 1}, lease=1, strict=False, stops=True, step=2, highest=2, processes=1
    ),
    "a load arrives twice": World({"copy": 1, "flush": 1}, step=2, highest=4),
    "direct, one process": World({"cut": 2}, strict=False, stops=True, processes=1, step=2, highest=4),
    "direct, and handed back": World({"cut": 2, "copy": 1}, strict=False, stops=True, step=2, highest=2),
    "forked": World({"fork": 1, "cut": 1}, strict=False, lease=2, highest=3),
    "deleted and made again": World({"delete": 1, "cut": 1}, strict=False, step=2, highest=2),
    "the store is restored, and recovered": World({"backup": 1, "restore": 1, "recover": 2}, highest=3),
    "the store is restored, direct": World(
        {"backup": 1, "restore": 1, "recover": 1, "cut": 1}, strict=False, highest=3
    ),
    "the store is restored, nobody recovers": World({"backup": 1, "restore": 1}, cautious=False, step=2, highest=4),
    "halted, then keys are lost": World(
        {"backup": 1, "restore": 1, "flush": 1}, cautious=False, after_halt=True, step=2, highest=4
    ),
    "one process goes on through a restore": World(
        {"backup": 1, "restore": 1, "cut": 1},
        strict=False,
        cautious=False,
        processes=1,
        running=True,
        step=1,
        highest=2,
    ),
    "several at once": World({"lost": 1, "flush": 1}, highest=6, draw=2),
    "a limit": World({"limit": 1, "flush": 1}, step=2, highest=3, limit=3),
    "ranges, without Redis": World({"cut": 2, "lost": 1}, step=2, highest=5, nodes=0, range=2, strict=False, limit=5),
    "ranges through a restore": World(
        {"restore": 1}, highest=6, nodes=0, range=2, strict=False, cautious=False, running=True, processes=1
    ),
    "keys": World({"lost": 1, "change": 1}, step=1, highest=1, keys=1),
    "two keys": World({"lost": 1}, step=2, highest=2, keys=2),
    "keys, forgotten": World({"flush": 1, "forget": 1, "lost": 1}, step=2, highest=2, keys=1),
    "keys, and a promotion": World({"promote": 1}, nodes=2, step=2, highest=2, keys=1),
    "the scheme changes, one process": World({"change": 1}, step=2, highest=4, processes=1),
    "the scheme changes, two processes": World({"change": 1}, step=2, highest=2),
    "the scheme changes, direct": World({"change": 1, "cut": 2}, step=1, highest=2, nodes=0, strict=False),
    "the scheme changes, ranges": World({"change": 1, "cut": 1}, step=1, highest=4, nodes=0, range=2, strict=False),
    "a script ends half done, and a rollback": World({"half": 1, "snapshot": 1, "rollback": 1}, step=2, highest=2),
    "a script ends half done, leases": World({"half": 1}, lease=1, strict=False, stops=True, step=2, highest=2),
    "a script ends half done, the scheme changes": World({"half": 1, "change": 1}, step=2, highest=2),
    "periods, one process": World({"tick": 1, "back": 1}, step=1, highest=5, processes=1, scheme=(0,), periods=True),
    "periods, keys are lost": World({"tick": 1, "flush": 1}, step=1, highest=5, processes=1, scheme=(0,), periods=True),
    "segments as large as wanted": World({"lost": 1, "flush": 1}, step=1, wanted=2, highest=3),
    "segments as large as wanted, and what one fault costs": World(
        {"crash": 1, "flush": 1}, step=1, wanted=2, highest=4, processes=1, gap=4
    ),
    "segments as large as wanted, direct": World({"cut": 1}, strict=False, stops=True, step=1, wanted=2, highest=2),
    "what one fault costs": World({"crash": 1, "flush": 1}, step=2, highest=6, processes=1, gap=4),
}

#: Searched by `make soak`, each time that the model was changed.
LARGE = {
    "crashes, lost replies and keys, longer segments": World({"crash": 1, "lost": 1, "flush": 1}),
    "a lagging replica is promoted, two segments": World({"promote": 1}, nodes=2, step=2, highest=4),
    "leases given back by two": World({"flush": 1}, lease=2, strict=False, stops=True, step=2, highest=4),
    "direct, one process, longer segments": World({"cut": 2}, strict=False, stops=True, processes=1),
    "recovered under load, longer segments": World({"recover": 1, "flush": 1}, step=2, highest=4),
    "restored, nobody recovers, longer segments": World({"backup": 1, "restore": 1}, cautious=False),
    "halted, then keys are lost, longer segments": World(
        {"backup": 1, "restore": 1, "flush": 1}, cautious=False, after_halt=True
    ),
    "one process through a restore, longer segments": World(
        {"backup": 1, "restore": 1, "cut": 1}, strict=False, cautious=False, processes=1, running=True
    ),
    "rolled back and flushed": World({"snapshot": 1, "rollback": 1, "flush": 1}, step=2),
    "there and back": World({"promote": 2}, nodes=2, step=2, highest=4),
    "recovered twice under load": World({"recover": 2}),
    "leases, and a rollback": World({"snapshot": 1, "rollback": 1}, lease=1, strict=False, step=2, highest=4),
    "leases, and a recovery under load": World({"recover": 1}, lease=2, strict=False, stops=True, step=2, highest=4),
    "direct beside leases": World({"cut": 1}, lease=1, strict=False, stops=True, step=2, highest=4),
    "deleted, with direct": World({"delete": 1, "cut": 1}, strict=False, step=2, highest=4),
    "direct, and a hand back twice": World({"cut": 1, "copy": 1}, strict=False, stops=True, step=2, highest=4),
    "restored, with direct": World({"backup": 1, "restore": 1, "recover": 1, "cut": 1}, strict=False),
    "ranges beside Redis": World(
        {"cut": 1, "lost": 1}, step=1, highest=3, range=2, strict=False, limit=3, processes=1, stops=True
    ),
    "the scheme changes": World({"change": 1, "flush": 1}, step=1, highest=2),
    "the scheme changes again": World({"change": 1}, step=2, highest=4, scheme=(0,)),
    "the scheme changes again, keys are lost": World({"change": 1, "flush": 1}, step=1, highest=2, scheme=(0,)),
    "the scheme changes, keys": World({"change": 1}, step=1, highest=2, keys=1),
    "the scheme changes, one process direct": World(
        {"change": 1, "cut": 1}, step=2, highest=4, strict=False, processes=1
    ),
    "the scheme changes, leases": World(
        {"change": 1}, lease=2, strict=False, stops=True, processes=1, step=2, highest=4
    ),
    "restored to before a change": World(
        {"change": 1, "restore": 1, "recover": 1}, step=1, highest=3, scheme=(0,), processes=1
    ),
    "restored to before a change, restart": World(
        {"change": 1, "restore": 1, "recover": 1, "restart": 1}, step=1, highest=2, processes=1
    ),
    "periods": World({"tick": 1}, step=1, highest=5, scheme=(0,), periods=True),
    "two periods": World({"tick": 2}, step=1, highest=9, scheme=(0,), periods=True, processes=1),
    "periods, the clock goes back": World({"tick": 1, "back": 1}, step=1, highest=5, scheme=(0,), periods=True),
    "three processes": World({"crash": 1, "flush": 1}, processes=3, step=2, highest=6),
}

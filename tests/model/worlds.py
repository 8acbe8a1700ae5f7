"""The bounds that are searched: each guard that is left out shows its harm in one of the small ones."""

from tests.model.state import World

#: Searched by `make check`: some seconds in all.
SMALL = {
    "a process crashes, replies are lost, keys are lost": World({"crash": 1, "lost": 1, "flush": 1}),
    "Redis goes back to a snapshot": World({"snapshot": 1, "rollback": 1}, step=2, highest=4),
    "a lagging replica is promoted": World({"promote": 1}, nodes=2, step=2, highest=4),
    "recovered under load": World({"recover": 1, "flush": 1}, step=2, highest=4),
    "leases, and a recovery": World({"recover": 1}, lease=2, strict=False, stops=True, processes=1, step=2, highest=4),
    "leases given back": World({"flush": 1}, lease=2, strict=False, stops=True, step=2, highest=4),
    "leases given back, and a copy": World({"copy": 1}, lease=1, strict=False, stops=True, step=2, highest=2),
    "leases across a rollback": World(
        {"snapshot": 1, "rollback": 1}, lease=1, strict=False, stops=True, step=2, highest=2, processes=1
    ),
    "a load arrives twice": World({"copy": 1, "flush": 1}, step=2, highest=4),
    "direct, one process": World({"cut": 2}, strict=False, stops=True, processes=1),
    "direct, and handed back": World({"cut": 2, "copy": 1}, strict=False, stops=True, step=2, highest=2),
    "forked": World({"fork": 1, "cut": 1}, strict=False, lease=2, highest=3),
    "deleted and made again": World({"delete": 1, "cut": 1}, strict=False, step=2, highest=2),
    "the store is restored, and recovered": World({"backup": 1, "restore": 1, "recover": 2}, highest=3),
    "the store is restored, direct": World(
        {"backup": 1, "restore": 1, "recover": 1, "cut": 1}, strict=False, highest=3
    ),
    "the store is restored, nobody recovers": World({"backup": 1, "restore": 1}, cautious=False),
    "halted, then keys are lost": World({"backup": 1, "restore": 1, "flush": 1}, cautious=False, after_halt=True),
    "one process goes on through a restore": World(
        {"backup": 1, "restore": 1, "cut": 1}, strict=False, cautious=False, processes=1, running=True
    ),
    "what one fault costs": World({"crash": 1, "flush": 1}, step=2, highest=6, processes=1, gap=4),
}

#: Searched by `make test` as well.
LARGE = {
    "rolled back and flushed": World({"snapshot": 1, "rollback": 1, "flush": 1}, step=2),
    "there and back": World({"promote": 2}, nodes=2, step=2, highest=4),
    "recovered twice under load": World({"recover": 2}),
    "leases, and a rollback": World({"snapshot": 1, "rollback": 1}, lease=1, strict=False, step=2, highest=4),
    "leases, and a recovery under load": World({"recover": 1}, lease=2, strict=False, stops=True, step=2, highest=4),
    "direct beside leases": World({"cut": 1}, lease=1, strict=False, stops=True, step=2, highest=4),
    "deleted, with direct": World({"delete": 1, "cut": 1}, strict=False, step=2, highest=4),
    "direct, and a hand back twice": World({"cut": 1, "copy": 1}, strict=False, stops=True, step=2, highest=4),
    "restored, with direct": World({"backup": 1, "restore": 1, "recover": 1, "cut": 1}, strict=False),
    "three processes": World({"crash": 1, "flush": 1}, processes=3, step=2, highest=6),
}

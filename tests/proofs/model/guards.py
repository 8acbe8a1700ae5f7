"""The guards of the protocol, each of which can be left out."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Guards:
    """True: as the protocol is. What each one says is true of the protocol."""

    # In every script.
    role: bool = True  # it asks for role:master
    node: bool = True  # in a Cluster, a hash that was armed for another node is of another reign
    replid: bool = True  # a fence is compared with master_replid alone, never with master_replid2
    # In next, lease and once.
    fence: bool = True  # a hash of another reign is refused
    draw_scheme: bool = True  # a caller that knows another scheme than the hash is refused
    draw_over: bool = True  # nothing is drawn once the period is over
    clamp: bool = True  # a grant ends at the segment's end
    reserved_only: bool = True  # at the end of both buffers it refuses, and never makes up a range
    # In once.
    once_kept: bool = True  # a key that has a number gets that one
    # In open.
    arm_empties: bool = True  # arming drops the numbers of the reign before
    open_scheme: bool = True  # a caller that knows another scheme than the hash is refused
    arm_scheme: bool = True  # likewise if the hash is of another reign
    arm_fence: bool = True  # arming takes the fence away with the first write, and puts it back with the last
    # In load.
    load_reign: bool = True  # the hash is of this reign, and it is the one that open told
    load_born: bool = True  # born is the one that open told
    load_top: bool = True  # the segment begins at or above top
    load_full: bool = True  # buffer 2 is free
    load_once: bool = True  # it is sent once
    # In floor.
    floor_born: bool = True  # it renews born
    floor_stays: bool = True  # the hash stays, where a DEL would do
    floor_drops: bool = True  # a floor of another scheme drops what was loaded
    # In giveback.
    give_reign: bool = True  # the hash is of the lease's reign
    give_born: bool = True  # born is the lease's
    give_cur: bool = True  # cur is the lease's end
    give_backs: bool = True  # nothing has come back since the lease was drawn, or only what was drawn after it
    give_low: bool = True  # what was drawn after it lies above it
    # In the process.
    sent_is_spent: bool = True  # a segment that was sent is never handed back
    rejoin_floors: bool = True  # whoever comes back to Redis floors what it issued direct
    fork_drops: bool = True  # a child drops what its parent held
    lease_looks: bool = True  # leases are dropped when fence or born have moved
    hand_above: bool = True  # a piece below what is held or was issued is refused
    own_low: bool = True  # a draw's numbers begin at low+1, also where it is granted short
    record_turn: bool = True  # a record with an earlier scheme never takes the place of a later one's
    reserved_scheme: bool = True  # a segment that was reserved under another scheme than the hash has isn't loaded
    own_scheme: bool = True  # a segment reserved direct is served with the scheme that its record has
    kept_scheme: bool = True  # whoever hears of a later scheme, with a key's number, reads the record first
    behind_scheme: bool = True  # a store whose scheme is earlier than the hash's went back in time
    range_seen: bool = True  # what was reserved for callers counts as taken
    range_scheme: bool = True  # a range that was reserved under a scheme is given back
    period_unknown: bool = True  # whoever arms a hash says that its period has yet to be found out
    # In the store.
    certain: bool = True  # a reservation is used only if its call returned normally
    at_least: bool = True  # reserve refuses below what the caller knows to be taken
    halts: bool = True  # once a store was seen behind, nobody reserves until recover
    version: bool = True  # hand_back compares the version
    limit: bool = True  # a reservation ends at the limit
    exact: bool = True  # a range near the limit is refused rather than cut
    limit_kept: bool = True  # a limit below max is refused
    change_seen: bool = True  # a change of the scheme compares the version of the record that it was made from
    tombstone: bool = True  # a deleted tag's max stays
    # The operator's part.
    told: bool = True  # recover hears of segments that were used direct: --at-least


INTACT = Guards()


def without(*names: str) -> Guards:
    """Return the protocol with these guards left out."""
    return replace(INTACT, **dict.fromkeys(names, False))

"""The guards of the protocol, each of which can be left out."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Guards:
    """True: as the protocol is. What each one says is true of the protocol."""

    # In every script.
    role: bool = True  # it asks for role:master
    replid: bool = True  # a fence is compared with master_replid alone, never with master_replid2
    # In next and lease.
    fence: bool = True  # a hash of another reign is refused
    clamp: bool = True  # a grant ends at the segment's end
    reserved_only: bool = True  # at the end of both buffers it refuses, and never makes up a range
    # In open.
    arm_empties: bool = True  # arming drops the numbers of the reign before
    # In load.
    load_reign: bool = True  # the hash is of this reign, and it is the one that open told
    load_born: bool = True  # born is the one that open told
    load_top: bool = True  # the segment begins at or above top
    load_full: bool = True  # buffer 2 is free
    load_once: bool = True  # it is sent once
    # In floor.
    floor_born: bool = True  # it renews born
    floor_stays: bool = True  # the hash stays, where a DEL would do
    # In giveback.
    give_reign: bool = True  # the hash is of the lease's reign
    give_born: bool = True  # born is the lease's
    give_cur: bool = True  # cur is the lease's end
    give_once: bool = True  # it is sent once
    # In the process.
    sent_is_spent: bool = True  # a segment that was sent is never handed back
    rejoin_floors: bool = True  # whoever comes back to Redis floors what it issued direct
    fork_drops: bool = True  # a child drops what its parent held
    lease_looks: bool = True  # leases are dropped when fence or born have moved
    hand_above: bool = True  # a piece below what is held or was issued is refused
    # In the store.
    certain: bool = True  # a reservation is used only if its call returned normally
    at_least: bool = True  # reserve refuses below what the caller knows to be taken
    halts: bool = True  # once a store was seen behind, nobody reserves until recover
    version: bool = True  # hand_back compares the version
    tombstone: bool = True  # a deleted tag's max stays
    # The operator's part.
    told: bool = True  # recover hears of segments that were used direct: --at-least


INTACT = Guards()


def without(*names: str) -> Guards:
    """Return the protocol with these guards left out."""
    return replace(INTACT, **dict.fromkeys(names, False))

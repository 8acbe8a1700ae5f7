"""What `doctor` finds in a MongoDB: the rights of the user, a replica set, a login. And the role on the page."""

from __future__ import annotations

import copy
import json
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import issuer
from issuer_persistence.errors import StoreError
from issuer_persistence.ledger import Purpose
from issuer_persistence.mongodb import MongoStore, server
from issuer_persistence.mongodb.call import INDEX
from issuer_persistence.records import Tag, TagChanges, TagSettings
from tests.servers.mongo import Mongod, MongoServers, needed_mongod
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from issuer.values import Finding
    from tests.servers.mongo import Client

pytestmark = pytest.mark.live

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "servers.md"
TIMEOUT = 30.0


def weak(url: str) -> dict[str, Finding]:
    """Return the problems that `doctor` finds in the store, by what they are about."""
    with issuer.connect(redis="none", store=url, scheduler=None) as ids:
        return {each.what.partition(":")[0]: each for each in ids.doctor() if each.level == "weak"}


def well(url: str) -> list[str]:
    """Return what `doctor` finds well in the settings of the store's server."""
    with issuer.connect(redis="none", store=url, scheduler=None) as ids:
        return [each.what for each in ids.doctor() if (each.check, each.level) == ("store-settings", "ok")]


# --------------------------------------------------------------------------------------------------------- replica sets


@pytest.fixture
def with_arbiter() -> Iterator[MongoServers]:
    """Two servers with data, and an arbiter."""
    with MongoServers(needed_mongod(), 2) as servers:
        arbiter = Mongod(needed_mongod())
        servers.members.append(arbiter)  # so it is ended with them
        arbiter.start()
        with servers.primary().client() as client:
            client.admin.command("setDefaultRWConcern", defaultWriteConcern={"w": 1})
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["members"].append({"_id": 2, "host": arbiter.address, "arbiterOnly": True})
            client.admin.command("replSetReconfig", config)
        until(lambda: {each["state"] for each in servers.status()["members"]} == {1, 2, 7}, TIMEOUT, "it is one")
        yield servers


@pytest.mark.covers("N.7")
def test_a_replica_set_of_which_a_server_is_away_or_only_one_is_used(with_arbiter: MongoServers) -> None:
    with issuer.connect(redis="none", store=with_arbiter.url, scheduler=None) as ids:
        ids.create("orders", order="trend")
    assert well(with_arbiter.url) == ["servers of the replica set: 3 of 3 are available"]
    for member in with_arbiter.members[:2]:
        [direct] = weak(f"mongodb://{member.address}/?directConnection=true").values()
        assert direct.what == "directConnection: true"
        assert "directConnection" in direct.remedy
    [other] = [each for each in with_arbiter.secondaries() if each is not with_arbiter.members[2]]
    said = f"servers of the replica set: 2 of 3 are available; not available: {other.address}"
    with other.frozen():  # it accepts connections, and answers none
        pauses: list[None] = []
        with closing(MongoStore.open(with_arbiter.url)) as store, store._call(TIMEOUT) as call:
            server.facts(server.Collections(call.tags, call.segments, call.meta), lambda: pauses.append(None))
        assert 0 < len(pauses) <= server._WAITS
        assert [each.what for each in weak(with_arbiter.url).values()] == [said]
    other.kill()
    assert [each.what for each in weak(with_arbiter.url).values()] == [said]


# --------------------------------------------------------------------------------------------------------------- rights


@pytest.fixture(scope="module")
def secured() -> Iterator[MongoServers]:
    with MongoServers(needed_mongod(), password="of-root") as servers:
        yield servers


@pytest.fixture
def root(secured: MongoServers) -> Iterator[Client]:
    with secured.client() as client:
        yield client
        client.drop_database("issuer")
        client.issuer.command("dropAllUsersFromDatabase")
        for database in (client.issuer, client.admin):
            database.command("dropAllRolesFromDatabase")


@pytest.fixture
def url(secured: MongoServers, root: Client) -> str:
    """The URL on the page, for the user that the page's commands create, on the test's server."""
    page = PAGE.read_text(encoding="utf-8")
    [block] = re.findall(r"^```javascript\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for each in block.split("db.runCommand(")[1:]:
        root.issuer.command(json.loads(each.rstrip().removesuffix(")")))
    [shown] = re.findall(r"`(mongodb://issuer:\S+)`", page)
    return str(shown.replace("host1,host2,host3", secured.members[0].address))


def use(store: MongoStore) -> None:
    """Call for everything that a store does."""
    try:
        purpose = Purpose("test")
        made = store.create_many({"a": TagSettings(step=10), "b": TagSettings(step=10)}, timeout=TIMEOUT)
        held = [store.reserve("a", None, at_least=0, exact=False, purpose=purpose, timeout=TIMEOUT) for _ in "123"]
        assert store.hand_back(held[-1:], 25, timeout=TIMEOUT)
        store.configure("b", TagChanges(scheme={"scramble": "s", "id": "i"}), timeout=TIMEOUT)
        assert store.halt("b", timeout=TIMEOUT)
        assert store.recover("b", at_least=50, timeout=TIMEOUT).max == 50
        store.delete("b", timeout=TIMEOUT)
        assert [each.high for each in store.ledger("a", newest=9, timeout=TIMEOUT)] == [25, 20, 10]
        assert store.prune(before=2**62, timeout=TIMEOUT).deleted == 2
        with store._call(TIMEOUT) as call:
            call.confirm()  # as after an error
            # As if another process had created "a" in the meantime: the other record is removed again.
            assert call.create([Tag.made("c", None, TagSettings()), made[0]], {}) is None
        assert [each.tag for each in store.tags(count=9, timeout=TIMEOUT)] == ["a"]
    finally:
        store.close()


def shrink(root: Client) -> Iterator[tuple[str, str]]:
    """Take each right away from the role, one after the other. Yield the right, and its collection."""
    [role] = root.issuer.command("rolesInfo", "issuer", showPrivileges=True)["roles"]
    for at, privilege in enumerate(role["privileges"]):
        for action in privilege["actions"]:
            kept = copy.deepcopy(role["privileges"])
            kept[at]["actions"].remove(action)
            root.issuer.command("updateRole", "issuer", privileges=[each for each in kept if each["actions"]])
            yield action, privilege["resource"]["collection"]


def test_the_role_on_the_page_is_enough_and_has_no_right_too_many(
    url: str, root: Client, caplog: pytest.LogCaptureFixture
) -> None:
    use(MongoStore.open(url))
    assert INDEX in [each["key"] for each in root.issuer.issuer_segments.index_information().values()]
    assert not caplog.records
    for action, _ in shrink(root):
        root.drop_database("issuer")
        if action in {"createIndex", "listIndexes"}:
            use(MongoStore.open(url))
            [warning] = caplog.records
            assert "the index of the ledger could not be created" in warning.message
            caplog.clear()
        else:
            with pytest.raises(StoreError, match="not authorized"):
                use(MongoStore.open(url))


@pytest.mark.covers("N.7")
def test_each_right_that_the_user_lacks_is_named(url: str, root: Client) -> None:
    use(MongoStore.open(url))
    assert (weak(url), well(url)) == ({}, ["missing rights: none"])
    for action, collection in shrink(root):
        found = weak(url)
        if (action, collection) in {("find", "meta"), ("find", "issuer_meta")}:  # then nothing else can be found out
            [rejected] = found.values()
            assert collection in rejected.what
            assert "the rights of its user" in rejected.remedy
        elif action in {"createIndex", "listIndexes"}:  # the index is there
            assert not found
        else:
            assert found["missing rights"].what == f"missing rights: {action} on issuer.{collection}"
            assert "Redis and stores" in found["missing rights"].remedy
    root.issuer.command("updateRole", "issuer", privileges=[], roles=["read"])
    lacking = "insert, remove, update on issuer.issuer_tags; insert, remove, update on issuer.issuer_segments"
    assert weak(url)["missing rights"].what == f"missing rights: {lacking}; insert, update on issuer.issuer_meta"


def test_a_service_that_shows_no_rights_is_examined_all_the_same(secured: MongoServers, url: str) -> None:
    use(MongoStore.open(url))
    with secured.failing("connectionStatus", errorCode=59), issuer.connect(redis="none", store=url) as ids:
        found = [each for each in ids.doctor() if each.check == "store-settings"]
    assert [(each.level, each.what) for each in found] == [
        ("unknown", "missing rights: the server does not report them")
    ]


@pytest.mark.parametrize("role", ["readWrite", "readWriteAnyDatabase", "root", "all"])
def test_rights_on_more_than_the_collections_are_rights_on_them(url: str, root: Client, role: str) -> None:
    everything = {"resource": {"anyResource": True}, "actions": ["anyAction"]}
    root.admin.command("createRole", "all", privileges=[everything], roles=[])
    held = {"role": role, "db": "issuer" if role == "readWrite" else "admin"}
    root.issuer.command("updateUser", "issuer", roles=[held])
    assert (weak(url), well(url)) == ({}, ["missing rights: none"])


@pytest.mark.covers("N.7")
@pytest.mark.parametrize("login", ["issuer:wrong@", ""])
def test_of_a_login_that_is_rejected_it_is_said_that_the_store_is_there(url: str, login: str) -> None:
    [rejected] = weak(url.replace("issuer:secret@", login)).values()
    assert isinstance(rejected.error, issuer.ConfigurationError)
    assert "the login" in rejected.remedy
    assert "Start" not in rejected.remedy
    assert "ConfigurationError" in rejected.why

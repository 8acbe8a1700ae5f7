"""Node's clients, as they are in the npm registry."""

import json

import pytest

from tests.doors.languages import node
from tests.doors.resp.serving import Served

pytestmark = pytest.mark.live

IOREDIS = """
import Redis from "{package}";
const client = new Redis({ host: "127.0.0.1", port: Number(process.argv[2]), connectionName: "shop" });
const out = { first: await client.incr("a"), last: await client.incrby("a", 9) };
const replies = await client.pipeline().incr("a").get("a").incr("b").exec();
out.pipeline = replies.map(([error, value]) => (error ? error.message.split(" ")[0] : value));
out.many = await Promise.all(Array.from({ length: 200 }, () => client.incr("a")));
out.multi = (await client.multi().incr("a").incr("a").get("a").exec()).map(([, value]) => value);
out.missing = await client.get("b");
out.rounded = await client.incr("above");
console.log(JSON.stringify(out));
await client.quit();
"""

NODE_REDIS = """
import { createClient } from "{package}";
const url = `redis://127.0.0.1:${process.argv[2]}`;
const client = createClient({ url, name: "shop", RESP: Number(process.argv[3]) });
client.on("error", (error) => { throw error; });
await client.connect();
const out = { first: await client.incr("a"), last: await client.incrBy("a", 9) };
out.pipeline = [await client.incr("a"), await client.get("a")];
out.pipeline.push(await client.incr("b").catch((error) => error.message.split(" ")[0]));
out.many = await Promise.all(Array.from({ length: 200 }, () => client.incr("a")));
out.multi = await client.multi().incr("a").incr("a").get("a").exec();
out.missing = await client.get("b");
out.rounded = await client.incr("above");
console.log(JSON.stringify(out));
await client.close();
"""


@pytest.mark.parametrize(
    ("program", "package", "arguments"),
    [
        (IOREDIS, "ioredis5", []),
        (IOREDIS, "ioredis", []),
        *((NODE_REDIS, package, [protocol]) for package in ("redis5", "redis") for protocol in "23"),
    ],
    ids=["ioredis5", "ioredis", "node-redis5-resp2", "node-redis5-resp3", "node-redis-resp2", "node-redis-resp3"],
)
def test_node_draws(direct: Served, program: str, package: str, arguments: list[str]) -> None:
    direct.create("above", order="trend", start=2**53 + 1)
    told = json.loads(node.run(program.replace("{package}", package), str(direct.port), *arguments))
    assert told == {
        "first": 1,
        "last": 10,
        "pipeline": [11, "11", "NOTAG"],
        "many": list(range(12, 212)),
        "multi": [212, 213, "213"],
        "missing": None,
        "rounded": 2**53,  # as docs/guide/languages/node.md says, and what its options avoid
    }

"""The databases that the pages about other issuers read: what they have before the first command."""

from __future__ import annotations

from typing import Any

#: Of each page: the addresses in its commands, each with the server, the layouts, and rows: table, columns, values.
WAYS: dict[str, dict[str, tuple[str, list[str], list[tuple[str, str, list[tuple[Any, ...]]]]]]] = {
    "docs/guide/from-leaf.md": {
        "mysql://leaf@db/leaf": (
            "mariadb", ["leaf"],
            [("leaf_alloc", "biz_tag, max_id, step, description", [("order", 5001, 1000, ""), ("pay", 701, 1000, "")])],
        )
    },
    "docs/guide/from-tinyid.md": {
        "mysql://tinyid@db/tinyid": (
            "mariadb", ["tinyid", "tokens"],
            [
                ("tiny_id_info", "id, biz_type, max_id, step, delta, remainder",
                 [(1, "test", 1, 100000, 1, 0), (2, "test_odd", 1, 100000, 2, 1)]),
                ("tiny_id_token", "id, token, biz_type", [(1, "0f673adf80504e2eaa552f5d791b644c", "test")]),
            ],
        )
    },
    "docs/guide/from-a-sequence-table.md": {
        "mysql://app@db/shop": (
            "mariadb", ["sequence"],
            [('"sequence"', "seq_name, current_value, _increment", [("invoice", 700, 1), ("order", 45, 5)])],
        ),
        "postgresql://app@db/shop": ("postgres", ["parcels"], [("parcels", "name", [("a",), ("b",), ("c",)])]),
    },
    "docs/guide/from-auto-increment.md": {
        "mysql://app@db/shop": ("mariadb", ["table"], [("orders", "id, name", [(12, "a")])]),
    },
}  # fmt: skip

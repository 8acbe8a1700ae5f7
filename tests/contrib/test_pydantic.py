"""`issuer.contrib.pydantic`: an int in Python, a string of digits in JSON."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from issuer.contrib.pydantic import Number

HIGHEST = 2**63 - 1


class Order(BaseModel):
    id: Number
    rows: list[Number] = []
    before: Number | None = None


@pytest.mark.parametrize("number", [0, 1, 2**53, 2**53 + 1, HIGHEST])
def test_a_number_is_exact_on_its_way_through_json(number: int) -> None:
    order = Order(id=number, rows=[number], before=number)
    text = order.model_dump_json()
    assert json.loads(text) == {"id": str(number), "rows": [str(number)], "before": str(number)}
    assert order.model_dump(mode="json") == json.loads(text)
    assert order.model_dump() == {"id": number, "rows": [number], "before": number}
    assert Order.model_validate_json(text) == order
    assert Order.model_validate({"id": number}) == Order.model_validate({"id": str(number)})
    assert Order.model_validate_json(f'{{"id": {number}}}').id == number


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        HIGHEST + 1,
        str(HIGHEST + 1),
        "-1",
        "+1",
        "01",
        "00",
        " 1",
        "1\n",
        "1_000",
        "1.0",
        "1e3",
        "٣",
        "",
        1.0,
        True,
        None,
        [1],
        b"1",
    ],
    ids=repr,
)
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Number).validate_python(wrong)


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_json_schema_is_that_of_a_string_of_digits(mode: Any) -> None:
    assert TypeAdapter(Number).json_schema(mode=mode) == {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}

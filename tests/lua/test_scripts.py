"""The scripts, read as text: header, body, gateway and README say the same.

`complaints` is the checker; made-up scripts show that it finds what it looks for.
"""

import hashlib
import re
from typing import Any, get_args, get_type_hints

import pytest

from issuer.errors import ConfigurationError
from issuer.gateway import commands, machine_scripts, tag_scripts
from issuer.gateway.commands import RedisCall
from tests.refusals import refused

LUA = commands.folder()
README = (LUA / "README.md").read_text(encoding="utf-8")

#: Everything that holds a number of the tag, and so must stay a string.
NUMBERS = "n|at|used|cur|max|mark|low|high|top|highest|segment_mark|next_cur|next_max|next_mark|moved"


def header(text: str) -> str:
    match = re.match(r"--\[\[\n(.*?)\n\]\]\n", text, re.DOTALL)
    return match[1] if match else ""


def code(text: str) -> str:
    """Without header and comments."""
    text = re.sub(r"--\[\[.*?\]\]", "", text, flags=re.DOTALL)
    return re.sub(r"--.*", "", text)


def bare(text: str) -> str:
    """Without strings, too."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "''", code(text))


def numbered(text: str, array: str) -> set[int]:
    return {int(number) for number in re.findall(rf"\b{array}\[(\d+)\]", text)}


def statuses(text: str) -> set[str]:
    """First words of the arrays that are returned, and the codes of errors."""
    body = code(text)
    return set(re.findall(r"return \{'(\w+)'", body)) | set(re.findall(r"redis\.error_reply\('(\w+) ", body))


def promised(text: str) -> set[str]:
    """The same, as the header has them."""
    replies = header(text).partition("Returns one of\n")[2]
    return set(re.findall(r"^  \{'(\w+)'", replies, re.MULTILINE)) | set(
        re.findall(r"^  error (\w+)", replies, re.MULTILINE)
    )


def second_words(text: str) -> set[str]:
    return set(re.findall(r"\{'\w+'(?:, [\w ]+)*, '(\w+)'", code(text)))


def complaints(name: str, text: str) -> list[str]:
    """What is wrong with the assembled script `text`."""
    found = []
    top, body, plain = header(text), code(text), bare(text)
    if not top.startswith(f"{name}: "):
        found.append("the header is not the first thing, or does not begin with the script's name")
    for array in ("KEYS", "ARGV"):
        declared = {int(number) for number in re.findall(rf"^{array}\[(\d+)\]  \S", top, re.MULTILINE)}
        used = numbered(body, array)
        if declared != set(range(1, len(declared) + 1)):
            found.append(f"{array} are declared as {sorted(declared)}")
        found += [f"{array}[{number}] is declared and never read" for number in sorted(declared - used)]
        found += [f"{array}[{number}] is read and not declared" for number in sorted(used - declared)]
        if re.search(rf"\b{array}\b(?!\[\d+\])", plain):
            found.append(f"{array} is used otherwise than by a plain index")
    returned = statuses(text) - promised(text) | {word for word in second_words(text) if f"'{word}'" not in top}
    found += [f"{word} is returned and not in the header" for word in sorted(returned)]
    found += [f"{word} is in the header and never returned" for word in sorted(promised(text) - statuses(text))]
    found += [f"a loop: {word}" for word in re.findall(r"\b(while|for|repeat|goto)\b", plain)]
    found += [
        f"tonumber({what.strip()})"
        for what in re.findall(r"\btonumber\(([^()]*)", plain)
        if re.search(rf"\b({NUMBERS})\b", what)
    ]
    found += [
        f"arithmetic: {what.strip()}"
        for what in re.findall(rf"\b(?:{NUMBERS})\b *[-+*/%^] *\w+|\w+ *[-+*/%^] *(?:{NUMBERS})\b", plain)
    ]
    return found


@pytest.fixture(params=commands.NAMES)
def script(request: pytest.FixtureRequest) -> commands.Script:
    return commands.script(request.param)


@pytest.mark.covers("3.11")
def test_each_script_is_what_its_header_says_and_is_named_by_the_sha1_of_its_text(script: commands.Script) -> None:
    assert complaints(script.name, script.text) == []
    assert "@include" not in script.text
    assert script.sha == hashlib.sha1(script.text.encode(), usedforsecurity=False).hexdigest()


def test_each_lua_file_is_a_known_script_and_each_fragment_is_included() -> None:
    assert sorted(path.stem for path in LUA.glob("*.lua")) == sorted(commands.NAMES)
    included = {
        name
        for path in LUA.rglob("*.lua")
        for name in re.findall(r"^--@include (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert included == {path.stem for path in (LUA / "include").glob("*")}
    refused(ConfigurationError, "next, lease, giveback, open, load, floor", commands.script, "drain")


#: By the script: a call of it with all its arguments, and what its reply is decoded to.
CALLS: dict[str, tuple[RedisCall[Any], type]] = {
    "next": (tag_scripts.draw("k", 1, 1, "i"), tag_scripts.Drawn),
    "lease": (tag_scripts.lease("k", 1, 1, "i"), tag_scripts.Leased),
    "giveback": (tag_scripts.give_back("k", 1, 2, reign="r", born="b", backs=1), tag_scripts.GivenBack),
    "open": (tag_scripts.open("k", "b", "s", 1, "look", scheme="i", until=1), tag_scripts.Opened),
    "load": (tag_scripts.load("k", 0, 2, 1, reign="r", born="b"), tag_scripts.Loaded),
    "floor": (tag_scripts.floor("k", 1, "b", "s", "keep", scheme="i", until=1), tag_scripts.Floored),
    "once": (tag_scripts.once("k", "kept", 1, scheme="s", ttl=1, seen=0), tag_scripts.DrawnOnce),
    "read": (tag_scripts.read_hash("k"), tag_scripts.Hash),
    "machine_claim": (
        machine_scripts.machine_claim("k", 1, "h", "t", 1, lease=1, margin=1, first=1, store="s"),
        machine_scripts.Claimed,
    ),
    "machine_renew": (machine_scripts.machine_renew("k", 1, "t", 1, lease=1, margin=1), machine_scripts.Renewed),
    "machine_release": (machine_scripts.machine_release("k", 1, "t", 1), machine_scripts.Released),
}


def test_each_script_has_a_gateway_call_that_sends_and_knows_what_is_declared(script: commands.Script) -> None:
    call, record = CALLS[script.name]
    keys, arguments = (len(numbered(script.text, array)) for array in ("KEYS", "ARGV"))
    words = call.packed.split(b"\r\n")[2::2]
    assert words[:3] == [b"EVALSHA", script.sha.encode(), b"%d" % keys]
    assert len(words) == 3 + keys + arguments
    assert call.text == script.text
    if record is not tag_scripts.Hash:  # a hash without numbers shows that it is fenced
        assert set(get_args(get_type_hints(record)["status"])) == promised(script.text) - {"BADARG"}


def test_the_readme_lists_each_script_with_its_arguments_its_replies_and_what_to_do(script: commands.Script) -> None:
    table, _, rest = README.partition("## Arguments and replies")[2].partition("\n## ")
    (line,) = (line for line in table.splitlines() if line.startswith(f"| `{script.name}` |"))
    _, _, keys, arguments, replies = (cell.strip() for cell in line.strip("|").split("|"))
    assert len(keys.split(", ")) == len(numbered(script.text, "KEYS"))
    assert len(re.findall(r"`\w+`", arguments)) == len(numbered(script.text, "ARGV"))
    assert {re.findall(r"`(\w+)`", reply)[0] for reply in replies.split(";")} == promised(script.text)
    assert all(word in replies for word in second_words(script.text))
    advice = rest.partition("What to do on each status")[2].partition("\n## ")[0]
    # `load` answers with the name of the buffer: it is done then.
    assert {word for word in promised(script.text) - {"current", "next"} if f"`{word}`" not in advice} == set()


def test_the_readme_lists_each_field_of_the_hash() -> None:
    table = README.partition("## The hash")[2].partition("\n## ")[0]
    body = "".join(code(commands.script(name).text) for name in commands.NAMES)
    calls = "".join(re.findall(r"'(?:HSET|HMGET)', key, ([^\n]*)", body))
    listed = " ".join(line.split("|")[1] for line in table.splitlines() if "|" in line)
    assert set(re.findall(r"'(\w+)'", calls)) == set(re.findall(r"`(\w+)`", listed))


@pytest.mark.covers("3.12")
def test_the_readme_says_that_another_database_or_thread_does_not_help() -> None:
    assert "Another database or another thread of the same server does not help" in README


#: What is wrong once it is added to a script, and the complaint.
ADDED = {
    "f(ARGV[99])": "ARGV[99] is read and not declared",
    "f(unpack(KEYS))": "KEYS is used otherwise than by a plain index",
    "return {'gone'}": "gone is returned and not in the header",
    "return redis.error_reply('BADKEY no')": "BADKEY is returned and not in the header",
    "return {'ok', cur, 'less'}": "less is returned and not in the header",
    "while true do end": "a loop: while",
    "for i = 1, 2 do end": "a loop: for",
    "repeat until cur": "a loop: repeat",
    "local c = tonumber(hash[1] or next_max)": "tonumber(hash[1] or next_max)",
    "local c = cur + 1": "arithmetic: cur + 1",
    "local c = 1 + high": "arithmetic: 1 + high",
}


def test_the_checker_finds_what_is_wrong_with_a_script() -> None:
    text = commands.script("next").text
    for added, complaint in ADDED.items():
        assert complaints("next", text + added) == [complaint], added
    for declared in ("ARGV[9]", "KEYS[2]"):
        assert len(complaints("next", text.replace("\nARGV[1]", f"\n{declared}", 1))) > 1
    for headless in ("\n" + text, text.replace("next: ", "other: ", 1)):
        assert complaints("next", headless)[0].startswith("the header is not the first thing")

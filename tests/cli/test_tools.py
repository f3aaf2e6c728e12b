"""Commands as tools of other programs, and the server of tools."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from wirewise import topology
from wirewise.cli.tools import Bounds, run_tool, tools
from wirewise.errors import InputError
from wirewise.planners import PLANNERS


@pytest.fixture(scope="module")
def known():
    return tools()


@pytest.fixture
def bounds(tmp_path):
    return Bounds(tmp_path, 100.0, 8 << 30)


def call(tool, bounds, **given):
    return asyncio.run(run_tool(tool, given, bounds))


def test_schemas_are_those_of_the_options(known):
    sim = known["sim"].schema
    assert sim["properties"]["samples"]["type"] == "integer"
    assert sim["properties"]["what_if"] == {
        "type": "string",
        "description": "Changes, such as bandwidth=*:x2,bucket_mb=5.",
        "default": "",
    }
    assert sim["properties"]["sources"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": sim["properties"]["sources"]["description"],
    }
    assert known["advise"].schema["required"] == ["trace"]
    assert known["check"].schema["required"] == ["program"]
    assert all("json" not in one.arguments and one.help for one in known.values())
    assert {f"plan_{family}" for family in ("fusion", "collective", "jobs", "parallel")} <= known.keys()
    # Those without options of their own take any file of their family's job.
    assert {name.removeprefix("plan_") for name in known if name.startswith("plan_")} - {"pipeline"} <= set(
        PLANNERS
    )


def test_a_call_gives_what_the_command_prints_and_its_object(known, bounds, tmp_path, monkeypatch):
    (tmp_path / "two.toml").write_text(topology.dumps(topology.preset("h4")))
    text, found = call(known["topo_show"], bounds, source="two.toml")
    assert "host0 <-> host1" in text and len(found["hosts"]) == 4
    # Null is an argument that was left out.
    assert (
        call(known["check"], bounds, program="broadcast:binomial:8", topology=None)[1]["verdict"] == "right"
    )
    monkeypatch.setattr("wirewise.cli.tools._MOST_TEXT", 60)
    text, found = call(known["topo_show"], bounds, source="two.toml")
    assert "(cut after 60 characters; ask for less)" in text and "is left out, as it is above 60" in text
    assert found is None
    # The command refuses, and says why.
    (tmp_path / "two.toml").write_text("name = 1")
    with pytest.raises(InputError, match=r"two\.toml"):
        call(known["topo_show"], bounds, source="two.toml")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"program": "/etc/passwd"}, "'/etc/passwd', which is outside of"),
        ({"program": "../x.json"}, "outside of"),
        ({"program": "link/x.json"}, "outside of"),
        ({"program": "x.json", "topology": "a=/etc/passwd"}, "topology names '/etc/passwd'"),
        ({"program": "model.py:make"}, "which is code; tools run none"),
        ({"program": "x", "colour": 1}, "got the argument 'colour'; expected some of: "),
        ({}, "the argument 'program' is missing"),
        ({"program": None}, "the argument 'program' is missing"),
        ({"program": "a\0b"}, "expected text without NUL"),
    ],
)
def test_what_no_tool_does_is_refused_before_anything_runs(known, bounds, tmp_path, monkeypatch, given, told):
    (tmp_path / "link").symlink_to("/etc")
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(InputError, match=told):
        call(known["check"], bounds, **given)


def test_a_call_ends_at_its_limits_and_leaves_nothing(known, bounds):
    with pytest.raises(InputError, match=r"ended after 0\.05 s; ask for less"):
        call(known["topo_list"], bounds._replace(seconds=0.05))
    with pytest.raises(InputError):
        call(known["topo_list"], bounds._replace(memory_bytes=10 << 20))


def test_a_switch_is_given_as_it_is_meant(known, bounds, monkeypatch):
    lines, popen = [], subprocess.Popen

    def hear(line, **others):
        if line[0] == "sh":
            # It removes the folder of the call.
            return popen(line, **others)
        lines.append(line)
        raise InputError("heard")

    monkeypatch.setattr(subprocess, "Popen", hear)
    for tool in known.values():
        for name, one in tool.arguments.items():
            if one.schema["type"] == "boolean":
                needed = {other: "x" for other, its in tool.arguments.items() if its.required}
                for value in (True, False):
                    with pytest.raises(InputError, match="heard"):
                        call(tool, bounds, **needed, **{name: value})
                    yes, _, no = one.option.partition("/")
                    assert (yes in lines[-1], bool(no) and no in lines[-1]) == (value, bool(no) and not value)
    assert lines


def test_a_word_that_looks_like_an_option_is_a_word(known, bounds):
    with pytest.raises(InputError, match="--help"):
        call(known["topo_show"], bounds, source="--help")


def test_an_agent_lists_and_calls_tools(tmp_path):
    from mcp import Client, StdioServerParameters

    async def talk():
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "wirewise", "mcp", str(tmp_path)], env=dict(os.environ)
        )
        async with Client(server) as client:
            listed = await client.list_tools()
            right = await client.call_tool("check", {"program": "broadcast:binomial:8"})
            refused = await client.call_tool("check", {"program": "/etc/passwd"})
            unknown = await client.call_tool("rm", {})
        return listed.tools, right, refused, unknown

    listed, right, refused, unknown = asyncio.run(talk())
    assert {tool.name for tool in listed} == tools().keys()
    assert right.structured_content["verdict"] == "right" and not right.is_error
    assert refused.is_error and "outside of" in refused.content[0].text
    assert unknown.is_error and "got the tool 'rm'" in unknown.content[0].text

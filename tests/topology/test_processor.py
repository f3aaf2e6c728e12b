"""The processor has a name on every system."""

import pathlib

from wirewise.topology import processor


def test_the_processor_is_named_as_the_system_does(monkeypatch):
    name, cores = processor()
    assert name
    assert cores >= 1
    told = "model name\t: A: B\nflags : x\nmodel name\t: A: B\n"
    monkeypatch.setattr(pathlib.Path, "read_text", lambda *_, **__: told)
    assert processor() == ("A: B", 2)


def test_where_the_system_tells_nothing_the_architecture_stands(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(pathlib.Path, "read_text", absent)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert processor()[0] == "riscv64"

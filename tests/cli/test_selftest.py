"""Two ranks that exchange packed rows."""

import pytest

from wirewise.cli import selftest
from wirewise.errors import CodecError, PeerError


def test_a_spoiled_byte_is_noticed(monkeypatch):
    def spoil(buffer, layout, out):
        selftest_unpack(buffer, layout, out)
        out[5] += 1

    selftest_unpack = selftest.unpack
    monkeypatch.setattr(selftest, "unpack", spoil)
    with pytest.raises(PeerError, match=r"rank . of 2 failed: a received row is") as caught:
        selftest.run_selftest()
    assert isinstance(caught.value.__cause__, CodecError)

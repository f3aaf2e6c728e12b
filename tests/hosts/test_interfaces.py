"""Interfaces of this host by addresses, and addresses by interfaces."""

from __future__ import annotations

import pytest

from wirewise.hosts.interfaces import address_of_interface, address_towards, interface_of, interface_towards


def test_no_interface_leads_to_nobody():
    assert interface_towards(("alone",), 0) is None
    assert interface_towards(("here", "name.invalid"), 0) is None
    assert interface_towards(("here", "127.0.0.1"), 0) == "lo"


def test_an_address_and_its_interface_lead_to_each_other():
    assert address_of_interface("lo") == address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == interface_of("localhost") == "lo"
    assert interface_of("192.0.2.1") is None
    with pytest.raises(OSError):
        address_of_interface("none-such")

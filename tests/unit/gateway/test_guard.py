"""Who may speak to a gateway that asks for no key."""

from __future__ import annotations

import pytest

from gateway.guard import check_origin, is_loopback
from gateway.problems import Forbidden


def scope(port: int = 8080, **headers: str) -> dict[str, object]:
    """A request to a gateway at `port`; underscores in header names stand for dashes."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": named, "server": ("127.0.0.1", port)}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "127.0.0.1", "127.8.9.1", "::1"]
)
def test_names_and_addresses_of_this_machine_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "example.com", "localhost.example.com", "notlocalhost", "0.0.0.0", "192.168.0.1", "::", "1270.0.0.1"]
)
def test_nothing_else_is(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "localhost:9999"])
def test_programs_are_served_by_any_loopback_name(host: str) -> None:
    check_origin(scope(host=host))


@pytest.mark.parametrize("host", ["", "evil.com", "evil.com:8080", "192.168.0.1:8080", "localhost:x", "[::1", "a@b:80"])
def test_other_names_are_refused_since_a_page_may_have_pointed_them_here(host: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        check_origin(scope(host=host))
    assert refusal.value.field == "host"


def test_a_request_without_host_is_refused() -> None:
    with pytest.raises(Forbidden):
        check_origin(scope())


@pytest.mark.parametrize("origin", ["http://localhost:8080", "http://127.0.0.1:8080", "http://[::1]:8080"])
def test_pages_of_the_gateway_itself_are_served(origin: str) -> None:
    check_origin(scope(host="localhost:8080", origin=origin))


@pytest.mark.parametrize(
    "origin", ["http://evil.com", "http://localhost:3000", "http://localhost", "https://evil.com:8080", "null", ""]
)
def test_pages_from_elsewhere_are_refused(origin: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        check_origin(scope(host="localhost:8080", origin=origin))
    assert refusal.value.field == "origin"


def test_a_browser_must_use_the_gateways_own_port() -> None:
    with pytest.raises(Forbidden):
        check_origin(scope(host="localhost:9999", sec_fetch_site="same-origin"))
    check_origin(scope(host="localhost:8080", sec_fetch_site="none"))


def test_the_default_port_need_not_be_said() -> None:
    check_origin(scope(80, host="localhost", origin="http://localhost"))

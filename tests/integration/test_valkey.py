"""The embedded Valkey server, as processes and sockets show it."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cli import valkey as valkey_module
from cli.child import ChildFailed
from cli.ports import LOOPBACK, free_port
from cli.valkey import Valkey


async def test_keeps_what_was_written_over_a_restart_at_the_same_address(tmp_path: Path) -> None:
    async with Valkey(tmp_path) as first, Redis.from_url(first.url) as client:
        await client.set("key", "value")
    async with Valkey(tmp_path) as second, Redis.from_url(second.url) as client:
        assert await client.get("key") == b"value"
    assert first.url == second.url


async def test_comes_back_after_a_crash(own_valkey: Valkey) -> None:
    url = own_valkey.url
    async with Redis.from_url(url) as client:
        await client.set("key", "value")
    await own_valkey.kill()
    await own_valkey.start()
    assert own_valkey.url == url
    async with Redis.from_url(url) as client:
        assert await client.get("key") == b"value"


async def test_loads_an_append_only_file_whose_end_was_cut_off(tmp_path: Path) -> None:
    async with Valkey(tmp_path) as valkey, Redis.from_url(valkey.url) as client:
        await client.set("first", "1")
        await client.set("second", "2")
    cut_off_end(tmp_path)
    async with Valkey(tmp_path) as valkey, Redis.from_url(valkey.url) as client:
        assert await client.get("first") == b"1"
        assert await client.get("second") is None


def cut_off_end(folder: Path) -> None:
    (log,) = folder.glob("appendonlydir/*.incr.aof")
    log.write_bytes(log.read_bytes()[:-3])


async def test_is_durable_and_never_evicts(own_valkey: Valkey) -> None:
    async with Redis.from_url(own_valkey.url, decode_responses=True) as client:
        settings = await client.config_get("append*", "maxmemory-policy", "save", "bind")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""
    assert settings["bind"] == LOOPBACK


async def test_wants_its_password(own_valkey: Valkey) -> None:
    reader, writer = await asyncio.open_connection(LOOPBACK, own_valkey.port)
    writer.write(b"PING\r\n")
    assert (await reader.readline()).startswith(b"-NOAUTH")
    writer.close()
    await writer.wait_closed()


async def test_shows_its_password_to_its_owner_only(tmp_path: Path) -> None:
    async with Valkey(tmp_path) as valkey:
        assert valkey._child is not None
        ps = await asyncio.create_subprocess_exec(
            "ps", "-ww", "-o", "command=", "-p", str(valkey._child.pid), stdout=asyncio.subprocess.PIPE
        )
        shown, _ = await ps.communicate()
        assert b"valkey-server" in shown
        assert valkey._password.encode() not in shown
    assert stat.S_IMODE((tmp_path / "valkey.conf").stat().st_mode) == 0o600


async def test_takes_another_port_when_it_loses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as winner:
        winner.bind((LOOPBACK, 0))
        taken = winner.getsockname()[1]
        ports = iter([taken, taken])
        monkeypatch.setattr(valkey_module, "free_port", lambda: next(ports, None) or free_port())
        async with Valkey(tmp_path) as valkey:
            assert valkey.port != taken


async def test_many_start_at_once(tmp_path: Path) -> None:
    servers = [Valkey(tmp_path / str(number)) for number in range(8)]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        assert len({server.port for server in servers}) == 8
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def test_works_in_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    async with Valkey(tmp_path / 'it\'s "my" däta %20 \\ #1') as valkey, Redis.from_url(valkey.url) as client:
        assert await client.ping()


async def test_says_why_it_cannot_start(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path, options={"maxmemory-policy": "no-such-policy"})
    with pytest.raises(ChildFailed) as failure:
        await valkey.start()
    assert "no-such-policy" in failure.value.log

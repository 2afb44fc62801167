"""Sessions as they are shown."""

from __future__ import annotations

from typing import Any

from schemas.session_view import SessionDetail

SESSION: dict[str, Any] = {
    "id": "s",
    "agent_framework": "echo",
    "model": None,
    "language": None,
    "tools": None,
    "parameters": {},
    "user_id": None,
    "metadata": {},
    "active_leaf": None,
    "system": None,
    "created_at": 0,
    "updated_at": 0,
}


def message(name: str, parent: str | None, at: int = 0) -> dict[str, Any]:
    return {
        "id": name,
        "parent_id": parent,
        "role": "user",
        "content": name,
        "tool_calls": None,
        "tool_call_id": None,
        "status": "complete",
        "placed": True,
        "job_id": None,
        "created_at": at,
    }


def shown(leaf: str | None, *messages: dict[str, Any]) -> SessionDetail:
    return SessionDetail.of_rows({**SESSION, "active_leaf": leaf}, messages)


def test_the_active_branch_leads_from_the_root_to_the_leaf() -> None:
    tree = [message("a", None), message("b", "a", 1), message("c", "a", 2), message("d", "c", 3)]
    assert shown("d", *tree).active_branch == ["a", "c", "d"]
    assert shown("b", *tree).active_branch == ["a", "b"]
    assert shown(None, *tree).active_branch == []


def test_messages_made_at_once_stand_behind_their_parents() -> None:
    tree = [message("a", "b"), message("b", "c"), message("c", None), message("d", "a", 5), message("e", None, 4)]
    assert [m.id for m in shown("d", *tree).messages] == ["c", "b", "a", "e", "d"]


def test_a_loop_in_the_data_ends() -> None:
    detail = shown("a", message("a", "b"), message("b", "a"))
    assert sorted(detail.active_branch) == ["a", "b"]
    assert len(detail.messages) == 2


def test_a_parent_that_is_missing_is_a_root_above_the_branch() -> None:
    assert shown("a", message("a", "gone")).active_branch == ["a"]

"""The checker of links and leaks is itself checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_documents

DOCUMENT = """\
# Hello, *World*: it's `fine`!
## Twice
## Twice
<a id="marked"></a>
[good](#hello-world-its-fine) [good](#twice-1) [good](#marked) [good](other.md#there) [good](folder/)
![good](https://example.org/picture.png) [good](mailto:somebody@example.org) `[code](nowhere)` [good](a%20b.md "title")
```
[code](nowhere)
```
"""


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_documents, "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# There\n")
    (tmp_path / "a b.md").touch()
    (tmp_path / "folder").mkdir()
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT)
    return document


def faults(document: Path, more: str) -> list[str]:
    """The faults that appear when `more` is added to the document."""
    document.write_text(DOCUMENT + more)
    check_documents.anchors.cache_clear()
    return list(check_documents.faults_of(document))


def test_is_content_with_links_that_lead_somewhere(document: Path) -> None:
    assert faults(document, "") == []


@pytest.mark.parametrize("target", ["nowhere.md", "#nowhere", "other.md#nowhere", "/nowhere", "#twice-2"])
def test_finds_links_that_lead_nowhere(document: Path, target: str) -> None:
    assert faults(document, f"[bad]({target})\n") == [f"README.md:10: the link {target} leads nowhere"]
    assert faults(document, f"[bad]: {target}\n") == [f"README.md:10: the link {target} leads nowhere"]


@pytest.mark.parametrize("leak", ["//files.python" + "hosted.org/x", "see /ho" + "me/joe/chatmill", "(/ro" + "ot/x)"])
def test_finds_package_indexes_and_homes(document: Path, leak: str) -> None:
    (fault,) = faults(document, leak)
    assert fault.startswith("README.md:10: names ")

"""Nothing that was stored or received may be able to run code: the tree imports no unpickler."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "storage", "graph", "handlers", "workers", "gateway", "cli", "demo", "migrations")
#: Modules whose loading runs, or can be made to run, what they read.
UNPICKLERS = frozenset({"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"})


def unpicklers_in(source: str) -> set[str]:
    """The names of the unpickling modules that `source` imports, anywhere and however it spells it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Call):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return {name for name in found if name.split(".")[0] in UNPICKLERS or name in {"PickleEncoder", "PickleType"}}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_can_unpickle(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package} holds no source, so nothing was looked at"
    faults = {str(file.relative_to(ROOT)): unpicklers_in(file.read_text()) for file in files}
    assert {file: names for file, names in faults.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "def f():\n    from pickle import loads",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('cloudpickle')",
        "import dramatiq\nencoder = dramatiq.PickleEncoder()",
        "from sqlalchemy import PickleType",
    ],
)
def test_an_unpickler_is_found_however_it_is_spelled(source: str) -> None:
    assert unpicklers_in(source)

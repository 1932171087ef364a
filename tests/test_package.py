"""What is shipped: the wheel holds the migrations, the public names are the documented ones, imports stay light."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import turnfold

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(file).namelist())


def test_the_wheel_holds_every_migration(wheel: set[str]) -> None:
    folder = ROOT / "migrations"
    ours = {
        f"turnfold/migrations/{file.relative_to(folder).as_posix()}"
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert len(ours) >= 3
    assert {name for name in wheel if name.startswith("turnfold/migrations/") and "__pycache__" not in name} == ours


def test_the_wheel_holds_the_types_the_demo_and_nothing_beside_the_package(wheel: set[str]) -> None:
    assert {"turnfold/py.typed", "turnfold/cli/demo.json"} <= wheel
    assert {name.split("/")[0] for name in wheel} == {"turnfold", f"turnfold-{version()}.dist-info"}


def version() -> str:
    from importlib.metadata import version

    return version("turnfold")


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(turnfold.__all__) == turnfold.__all__
    undocumented = {
        name
        for name in turnfold.__all__
        if not getattr(turnfold, name).__doc__ and name not in ("Embedder", "Model", "Tier")
    }
    assert undocumented == set()


def imported_by(module: str) -> set[str]:
    script = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_turnfold_imports_no_extra() -> None:
    extras = {"typer", "rich", "psycopg", "toktok", "pytest", "pydantic_ai", "greenlet", "numpy", "pgvector", "alembic"}
    assert not extras & (imported_by("turnfold") - imported_by("sqlalchemy"))  # SQLAlchemy 2.0 imports greenlet


def test_no_module_is_longer_than_one_idea() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        if file.name != "testing.py":
            assert len(file.read_text().splitlines()) <= 400, file

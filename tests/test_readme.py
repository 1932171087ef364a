"""The README is true: its Python runs, its commands exist, its paths lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from turnfold.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_python_of_the_readme_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(blocks("python")) >= 3
    for number, block in enumerate(blocks("python")):
        exec(compile(block, f"README block {number}", "exec"), names)
    for engine in [value for value in names.values() if hasattr(value, "dispose")]:
        engine.dispose()


def test_every_command_of_the_readme_exists_with_its_options() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    lines = [line.lstrip("$ ") for block in blocks("console") for line in block.splitlines() if "turnfold " in line]
    shown = [shlex.split(line) for line in lines if line.startswith("turnfold ")]
    assert {words[1] for words in shown} == set(commands)
    for words in shown:
        options = {option for parameter in commands[words[1]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"\bmake ([a-z-]+)", README)
    assert "test" in targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_file_that_the_readme_links_to_exists() -> None:
    for path in re.findall(r"\]\((?!https?://|#)([^)#]+)", README):
        assert (ROOT / path).exists(), path

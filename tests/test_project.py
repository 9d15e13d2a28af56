"""Promises about the project as a whole: style, the direction of imports, the size of the embedded model."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMANDS = {"model/__main__.py", "model/plan_command.py"}  # they compose; nothing imports them
UPPER = {"model.published", "model.service", "model.training"}
FORBIDDEN = {
    "compile_cache/**": {"model", "app", "gradio", "spaces", "transformers", "diffusers"},
    "model/**": {"app", "gradio", "spaces", "diffusers"},
    "model/": UPPER | {"model.__main__", "model.plan_command"},
    "model/published/": {"model.service", "model.training"},
    "model/service/": {"model.published", "model.training"},
    "model/training/": {"model.published", "model.service"},
}


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_ruff(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def imported(file: Path) -> set[str]:
    """Full names of all modules that a file imports, anywhere in it."""
    package = file.relative_to(ROOT).parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1], node.module] if node.level else [node.module]
            origin = ".".join(filter(None, base))
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_run_one_way(folder: str) -> None:
    files = list(ROOT.glob(f"{folder}*.py" if folder[-1] == "/" else f"{folder}/*.py"))
    assert files
    for file in files:
        name = str(file.relative_to(ROOT))
        if name not in COMMANDS or folder == "model/**":
            wrong = {i for i in imported(file) if any(f"{i}.".startswith(f"{no}.") for no in FORBIDDEN[folder])}
            assert not wrong, f"{name} imports {wrong}"


def test_the_embedded_model_is_small_and_not_pickled() -> None:
    files = [file for file in (ROOT / "model" / "tiny").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 15_000_000
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md"}


def test_the_readmes_pictures_and_links_exist() -> None:
    for document in (ROOT / "README.md", ROOT / "model" / "training" / "README.md"):
        text = document.read_text()
        assert not re.search(r"^@?[A-Z_]{6,}@?$", text, re.MULTILINE), "a placeholder is left"
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (document.parent / target).exists(), target


def test_ci_runs_the_readmes_test_command() -> None:
    command = "pip install -q -r requirements.txt -r tests/requirements.txt && python -m pytest"
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()
    assert f"\n{command}\n" in (ROOT / "README.md").read_text()

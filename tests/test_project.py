"""Promises about the project as a whole: style, the direction of imports, the size of the embedded model."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "compile_cache": {"model", "app", "gradio", "spaces", "transformers", "diffusers"},
    "model": {"app", "gradio", "spaces", "diffusers"},
}


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_ruff(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_run_one_way(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            wrong = {name.split(".")[0] for name in names} & FORBIDDEN[package]
            assert not wrong, f"{file.relative_to(ROOT)} imports {wrong}"


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

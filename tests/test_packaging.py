"""The wheel: what is in it, where it lands, and what it asks for."""

from __future__ import annotations

import configparser
import email
import re
import shutil
import zipfile
from pathlib import Path

import pytest

import regmax

ROOT = Path(__file__).parents[1]
PLUGINS = ("divergence", "entropy", "gini", "graph", "oscar", "pnorm", "tsallis", "tv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built by the build backend itself, from a copy of the sources."""
    builder = pytest.importorskip("hatchling.build")
    source = tmp_path_factory.mktemp("source")
    for name in ("regmax", "plugins"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.nb?")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        name = builder.build_wheel(str(target))
    with zipfile.ZipFile(target / name) as archive:
        yield archive


def test_packages_are_top_level(wheel):
    names = wheel.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"regmax", *(f"regmax_{name}" for name in PLUGINS)}
    assert "regmax/py.typed" in names
    assert "regmax/cli/demo.py" in names


def test_version_is_in_one_place(wheel):
    assert f"regmax-{regmax.__version__}.dist-info/METADATA" in wheel.namelist()


def test_the_citation_and_the_changelog_have_the_version():
    assert f"\nversion: {regmax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {regmax.__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_it_depends_on_torch_and_pluggy_alone(wheel):
    metadata = email.message_from_bytes(
        wheel.read(f"regmax-{regmax.__version__}.dist-info/METADATA")
    )
    needed = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert sorted(re.match(r"[\w-]+", r)[0] for r in needed) == ["pluggy", "torch"]
    extras = {"fast", "validate", "testing", "plot", "demo", "transformers", "examples", "docs"}
    assert set(metadata.get_all("Provides-Extra")) == extras | {"dev", "all"}


def test_entry_points(wheel):
    points = configparser.ConfigParser()
    points.read_string(
        wheel.read(f"regmax-{regmax.__version__}.dist-info/entry_points.txt").decode()
    )
    assert points["console_scripts"]["regmax"] == "regmax.cli:main"
    assert dict(points["regmax"]) == {name: f"regmax_{name}" for name in PLUGINS} | {
        "solvers": "regmax.solvers",
        "backends": "regmax.testing.backends",
    }

"""Packages of extras that are not installed, and the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wirewise.errors import InputError
from wirewise.extras import import_extra

ROOT = Path(__file__).parents[1]


def test_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    told = r"a partition by METIS needs the package pymetis.*pip install 'wirewise\[gnn\]'"
    with pytest.raises(InputError, match=told):
        import_extra("pymetis", "gnn", "a partition by METIS")


def test_an_error_inside_an_installed_package_stays_its_own(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import a_package_that_is_gone")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_gone"):
        import_extra("half_installed", "gnn", "a test")


def test_graphs_need_their_extra_where_they_use_it(monkeypatch):
    from wirewise import graph

    data = graph.load("block:nodes=60,classes=2,features=4")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert len(np.unique(graph.partition(data, 2, method="random"))) == 2
    with pytest.raises(InputError, match=r"wirewise\[gnn\]"):
        graph.partition(data, 2, method="metis")


@pytest.mark.parametrize(
    "module", [f"wirewise.integrations.{name}" for name in ("pyg", "lightning", "transformers")]
)
def test_an_integration_without_its_package_says_so(module):
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch_geometric', 'lightning', 'transformers']))\n"
        f"from wirewise.errors import InputError\ntry:\n    import {module}\n"
        "except InputError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"{module} needs the package" in done.stdout and "pip install 'wirewise[" in done.stdout


@pytest.mark.slow
def test_the_wheel_has_the_library_its_papers_and_its_command(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("wirewise-*.whl")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    assert (site / "wirewise" / "systems.toml").is_file() and (site / "wirewise" / "py.typed").is_file()
    command = [sys.executable, site / "bin" / "wirewise", "run", "--help"]
    shown = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert "pipedream-2bw" in shown.stdout and "adaqp" in shown.stdout

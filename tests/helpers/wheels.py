"""Holdfast as a user has it: a wheel, installed into an environment in which no path leads to the project's folder."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tasks.cluster.kubernetes.jobset import jobset_to_try
from tasks.configuration.cluster import ClusterConfig
from tests.helpers.commands import ROOT
from training.configuration import TrainConfig

NAMES = ("flows", "tasks", "training", "storage")
PACKAGES = ("holdfast", *NAMES)


class Installed(NamedTuple):
    """The wheel, and the folder of the programs of an environment with it."""

    wheel: Path
    programs: Path


def installed_once(shared: Path, own: Path) -> Installed:
    """Built and installed in the folder `own` by the first of all processes with one `shared` folder, for all."""
    note = shared / "installed-wheel.json"
    with note.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            for folder in (own / "wheel", own / "environment"):
                folder.mkdir()
            wheel = build_wheel(own / "wheel")
            note.write_text(json.dumps([str(wheel), str(install_wheel(wheel, own / "environment"))]))
        return Installed(*map(Path, json.loads(note.read_text())))


def build_wheel(folder: Path) -> Path:
    """The wheel, built from a copy: a `build` folder of an earlier day must not get into it, nor one be left here."""
    source = folder / "source"
    source.mkdir()
    for name in (*PACKAGES, "tests", "deployments"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return path


def install_wheel(wheel: Path, folder: Path) -> Path:
    """The folder of the programs of an environment with the wheel, and with the libraries of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel)], check=True)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A folder named here is searched for packages alone: what makes this project editable in it has no effect.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def write_own_packages(folder: Path) -> None:
    """Put into a user's folder something else under each of our names."""
    for name in NAMES[:-1]:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("OWNER = 'somebody else'\n")
    (folder / f"{NAMES[-1]}.py").write_text("OWNER = 'somebody else'\n")


def without_python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python finds what is installed, and nothing of the project's folder."""
    return {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}


def require_what_pods_need(python: Path, folder: Path) -> None:
    """Fails unless the environment of this Python has all that a pod runs, in a folder that is not the project's."""
    command = jobset_to_try(ClusterConfig(), TrainConfig(), 0)["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = command["template"]["spec"]["containers"]
    assert container["command"][0] == "python"
    helped = _use(python, folder, *container["command"][1:], "--help")
    assert helped.returncode == 0 and "One node's part in a segment" in helped.stdout, helped.stderr
    imported = _use(python, folder, "-c", "import tasks.cluster.kubernetes.job, training.agents.agent")
    assert imported.returncode == 0, imported.stderr
    version = subprocess.run([str(python.parent / "holdfast"), "--version"], capture_output=True, text=True)
    assert version.stdout.startswith("holdfast "), version.stderr


def _use(python: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = without_python_path(os.environ) | {"PATH": f"{python.parent}:{os.defpath}"}
    return subprocess.run([str(python), *arguments], cwd=folder, env=environment, capture_output=True, text=True)

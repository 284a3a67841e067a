"""A report whose numbers are made up, and whose texts are as bad as texts can be."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from qwill.report import About, Report

CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
HOSTILE = "</script><img src=x onerror=alert(1)>"
TEXTS = [
    *(
        "<|im_start|>",
        "user",
        "␊",
        HOSTILE,
        "你好",
        "·世界",
        "<0xF0>",
        "<0x9F>",
        "👩‍👩‍👧",
        "\u202eleft\u202c",
        "שלום",
        "{{data}}",
    ),
    *("<|im_end|>", "␊", "<|im_start|>", "assistant", "␊"),
    *("The", "·answer", "·is", "·42", ".", "é", "<!--", "<|im_end|>"),
]
PROMPT = 17
LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 3, 4, 2, 16, 4


def packed(*arrays: np.ndarray) -> str:
    """Arrays one after the other, as the page unpacks them."""
    return base64.b64encode(zlib.compress(b"".join(array.tobytes() for array in arrays))).decode()


def example_tokens(texts: list[str], prompt: int) -> dict[str, Any]:
    rows = [
        {
            "position": position,
            "id": 1000 + position,
            "text": text,
            "bytes": text.encode().hex(),
            "special": text.startswith("<|"),
            "partial": text.startswith("<0x"),
            "part": "prompt" if position < prompt else "answer",
        }
        for position, text in enumerate(texts)
    ]
    return {"tokens": rows}


def example_probabilities(texts: list[str], prompt: int) -> dict[str, Any]:
    random = np.random.default_rng(1)
    positions = []
    for position, text in enumerate(texts):
        p = [float(value) for value in np.sort(random.dirichlet([0.3] * 6))[::-1]]
        came = position % 6
        top = [{"id": 7 + i, "text": f"·w{i}"} for i in range(5)]
        if came < len(top):
            top[came] = {"id": 1000 + position, "text": text}
        first = position == 0
        positions.append(
            {
                "position": position,
                "id": 1000 + position,
                "text": text,
                "probability": None if first else p[came],
                "logprob": None if first else math.log(max(p[came], 1e-30)),
                "rank": None if first else came + 1,
                "entropy": None if first else -sum(x * math.log2(max(x, 1e-30)) for x in p),
                "sampling_probability": p[came] if position >= prompt else None,
                "top": [] if first else [{**one, "probability": p[i]} for i, one in enumerate(top)],
            }
        )
    by = {"id": 7, "text": "·w0" + HOSTILE}
    what_if = [
        {"position": at, "replaced": {"id": 1, "text": texts[at]}, "by": by, "text": " 另一种 way 🎈", "ids": [1, 2]}
        for at in (prompt + 1, prompt + 3)
    ]
    return {"positions": positions, "what_if": what_if}


def example_lens(texts: list[str]) -> dict[str, Any]:
    random = np.random.default_rng(2)
    cells = [
        [
            {
                "id": 5,
                "text": texts[(layer + position) % len(texts)],
                "probability": float(random.random() ** (4 - layer)),
                "entropy": float(random.random() * 5),
                "rank_of_final": 1 if layer == LAYERS else int(random.integers(1, 5000)),
            }
            for position in range(len(texts))
        ]
        for layer in range(LAYERS + 1)
    ]
    return {"layers": [*range(LAYERS + 1)], "positions": [*range(len(texts))], "texts": texts, "cells": cells}


def example_attention(texts: list[str], position: int, grid: int) -> dict[str, Any]:
    random = np.random.default_rng(3)
    count, k = len(texts), 8
    maps, tops, scores, summary = [], [], [], []
    for _ in range(LAYERS):
        logits = random.normal(0, 2, (HEADS, count, count))
        logits = np.where(np.tril(np.ones((count, count), bool)), logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        cells = weights[:, :grid, :grid]
        maps.append(packed(np.round(255 * np.sqrt(cells)).astype(np.uint8)))
        order = np.argsort(-weights, axis=-1, kind="stable")[..., :k]
        strong = np.round(255 * np.sqrt(np.take_along_axis(weights, order, -1))).astype(np.uint8)
        tops.append(packed(order.astype("<u2"), strong))
        scores.append(packed(random.normal(0, 3, (2, HEADS, count)).astype("<f2")))
        summary.append(
            [
                {"entropy": 2.0 + head, "first_token": 0.5, "previous_token": 0.1 * head, "distance": 3.0}
                for head in range(HEADS)
            ]
        )
    shape = {"num_layers": LAYERS, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "num_tokens": count, "first": 0}
    return {
        **shape,
        "texts": texts,
        "grid": grid,
        "maps": maps,
        "top": {"k": k, "layers": tops},
        "summary": summary,
        "qk": {"position": position, "layers": scores},
    }


def example_rotary(count: int) -> dict[str, Any]:
    speeds = [1e6 ** (-2 * pair / HEAD_DIM) for pair in range(HEAD_DIM // 2)]
    waves = [2 * math.pi / speed for speed in speeds]
    return {"head_dim": HEAD_DIM, "theta": 1e6, "inv_freq": speeds, "wavelengths": waves, "positions": count}


def example_cache(prompt: int, answer: int) -> dict[str, Any]:
    def share(request: str, start: int, count: int, table: list[int], cached: int) -> dict[str, Any]:
        blocks = table[: -(-(start + count) // BLOCK)]
        return {"request": request, "start": start, "count": count, "blocks": blocks, "cached_tokens": cached}

    one, other = [*range(12)], [0, 1, 2, *range(20, 30)]
    steps = [[share("0", 0, prompt, one, 0)]]
    steps.append([share("0", prompt, 1, one, 0), share("1<b>", 12, prompt - 12, other, 12)])
    for at in range(2, answer):
        steps.append([share("0", prompt + at - 1, 1, one, 0), share("1<b>", prompt + at - 2, 1, other, 12)])
    return {
        "block_size": BLOCK,
        "num_blocks": 64,
        "requests": [
            {"id": "0", "prompt_tokens": prompt, "cached_tokens": 0},
            {"id": "1<b>", "prompt_tokens": prompt, "cached_tokens": 12},
        ],
        "steps": [
            {"index": i, "seconds": 0.01, "free": 50 - i, "cached": i, "shares": shares, "copies": []}
            for i, shares in enumerate(steps)
        ],
    }


def example_roofline() -> dict[str, Any]:
    names = [("linear", "mlp.down_proj"), ("linear", "self_attn.qkv_proj"), ("attention", "self_attn")]
    names.append(("rms_norm", "norm"))
    ops = [
        {
            "phase": phase,
            "op": op,
            "module": module,
            "calls": 3 * steps,
            "seconds": 0.01 / (1 + i) * steps,
            "nbytes": 9_000_000 * steps // (1 + i),
            "operations": 20_000_000 * tokens // (1 + i) ** 2,
        }
        for phase, steps, tokens in (("prefill", 1, 17), ("decode", 7, 7))
        for i, (op, module) in enumerate(names)
    ]
    phases = [
        {"phase": "prefill", "steps": 1, "tokens": 17, "seconds": 0.03},
        {"phase": "decode", "steps": 7, "tokens": 7, "seconds": 0.2},
    ]
    return {"read_bandwidth": 2.0e10, "peak_operations": None, "ops": ops, "phases": phases}


def example_weights() -> dict[str, Any]:
    random = np.random.default_rng(4)
    tensors = []
    for index, name in enumerate(("embed_tokens.weight", "layers.0.mlp.down_proj.weight", "norm.weight")):
        values = random.normal(0, 0.02 * (index + 1), 4000)
        counts, edges = np.histogram(values, 31)
        tensors.append(
            {
                "name": name,
                "shape": [100, 40],
                "format": "int4" if index < 2 else "float32",
                "nbytes": 2000 * (index + 1),
                "bits_per_weight": 4.5 if index < 2 else 32.0,
                "mean": float(values.mean()),
                "std": float(values.std()),
                "min": float(values.min()),
                "max": float(values.max()),
                "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
                "error": {"relative_rms": 0.05 * index, "max": 0.01} if index < 2 else None,
            }
        )
    return {"tensors": tensors}


def example_report(repeat: int = 1) -> Report:
    """All sections; `repeat` makes the text longer."""
    prompt = PROMPT * repeat
    texts = TEXTS[:PROMPT] * repeat + TEXTS[PROMPT:]
    count = len(texts)
    return Report(
        About(
            model=f"acme/{HOSTILE}",
            prompt=f"{HOSTILE}\n你好 👩‍👩‍👧 \u202eevil {{{{script}}}}",
            answer="The answer is 42. é <!--",
            facts={"prompt": f"{prompt} tokens", "sampling": HOSTILE},
        ),
        {
            "tokens": example_tokens(texts, prompt),
            "probabilities": example_probabilities(texts, prompt),
            "logit_lens": example_lens(texts),
            "attention": example_attention(texts, prompt - 1, min(64, count)),
            "rotary": example_rotary(count),
            "kv_cache": example_cache(PROMPT, 8),
            "roofline": example_roofline(),
            "weights": example_weights(),
        },
    )


@pytest.fixture(scope="session")
def hostile_report() -> Report:
    """A report with every section, and with texts that would harm a careless page."""
    return example_report()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A Chromium without windows; one for all tests of a file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Open a report from its file; at the end, nothing was asked of any network, and nothing was complained of."""
    bad: list[str] = []
    contexts: list[BrowserContext] = []

    def opened(report: Report, section: str = "", **context: Any) -> Page:
        file = tmp_path / "report.html"
        report.save(file)
        contexts.append(browser.new_context(**context))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: bad.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: bad.append(f"error: {error}"))
        page.on("dialog", lambda dialog: bad.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: None if request.url.startswith(file.as_uri()) else bad.append(request.url))
        page.goto(f"{file.as_uri()}#{section}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert bad == []

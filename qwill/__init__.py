"""qwill: Qwen inference written out by hand in PyTorch.

    from qwill import LLM, SamplingParams

    with LLM("qwen2.5-coder-0.5b") as llm:
        print(llm.chat([{"role": "user", "content": "你好"}])[0].outputs[0].content)

In an event loop, `AsyncLLM` does the same with `await` and `async for`.
Importing this package is cheap: names are loaded on first use, and torch only with `LLM` and `AsyncLLM`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwill.async_llm import AsyncLLM
    from qwill.errors import QwillError
    from qwill.llm import LLM
    from qwill.outputs import CompletionOutput, RequestOutput, StreamEvent
    from qwill.sampling_params import SamplingParams, StructuredOutputsParams
    from qwill.settings import EngineSettings

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineSettings",
    "QwillError",
    "RequestOutput",
    "SamplingParams",
    "StreamEvent",
    "StructuredOutputsParams",
    "__version__",
]

__version__ = "0.1.0"

_HOME = {
    "LLM": "qwill.llm",
    "AsyncLLM": "qwill.async_llm",
    "CompletionOutput": "qwill.outputs",
    "EngineSettings": "qwill.settings",
    "QwillError": "qwill.errors",
    "RequestOutput": "qwill.outputs",
    "SamplingParams": "qwill.sampling_params",
    "StreamEvent": "qwill.outputs",
    "StructuredOutputsParams": "qwill.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'qwill' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

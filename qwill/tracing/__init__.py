"""Tracing: what the engine does while somebody looks on: every op of every step, and what it computed.

    with trace(llm, attention=True) as t:
        llm.generate("To be")
    t.ops, t.steps, t.request().attention(layer=0)

The engine runs the same code as ever, with the same results; nothing of this is there when nobody traces.
"""

from __future__ import annotations

from qwill.tracing.records import OpRecord, ShareRecord, StepRecord
from qwill.tracing.request_trace import RequestTrace
from qwill.tracing.trace import Trace, trace

__all__ = ["OpRecord", "RequestTrace", "ShareRecord", "StepRecord", "Trace", "trace"]

"""Every number of an evaluation is shown with its unit."""

from __future__ import annotations

import dataclasses
import io

from qwill.eval.quality import Divergence, Quality, Size
from qwill.eval.report import print_report

QUALITY = Quality(
    model="m",
    baseline="m",
    settings={"quant": "int4"},
    size=Size(1000, 600),
    baseline_size=Size(1000, 4000),
    text="poem.txt",
    text_sha256="0",
    text_tokens=513,
    window=256,
    positions=510,
    divergence=Divergence(0.0625, 0.003, 0.03, 0.51, 1.75),
    top1_agreement=93.75,
    perplexity=21.5,
    baseline_perplexity=20.25,
    interrupted=False,
)


def shown(quality: Quality) -> str:
    out = io.StringIO()
    print_report(quality, out)
    return out.getvalue()


def test_every_number_is_there() -> None:
    text = shown(QUALITY)
    for part in ("int4", "itself", "poem.txt: 510 of 513", "windows of 256", "4.80", "0.0625 ± 0.003 nats"):
        assert part in text
    for part in ("median 0.03", "99th percentile 0.51", "most 1.75", "93.75 %", "21.5000", "20.2500"):
        assert part in text
    assert "interrupted" not in text


def test_what_was_interrupted_says_so_and_one_position_has_no_error() -> None:
    one = Divergence(0.5, None, 0.5, 0.5, 0.5)
    text = shown(dataclasses.replace(QUALITY, interrupted=True, baseline="b", positions=1, divergence=one))
    assert "interrupted" in text
    assert "±" not in text
    assert "against b " in text

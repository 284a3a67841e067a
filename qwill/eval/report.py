"""An evaluation for a reader: a few lines that say what was compared, on what, and how far apart they are."""

from __future__ import annotations

from typing import TextIO

from qwill.eval.quality import Quality, Size

__all__ = ["print_report"]


def print_report(quality: Quality, file: TextIO) -> None:
    """Write all numbers, with their units."""
    kl = quality.divergence
    error = "" if kl.standard_error is None else f" ± {kl.standard_error:.4g}"
    against = "itself" if quality.baseline == quality.model else quality.baseline
    lines = [
        f"{quality.model}, quant {quality.settings['quant']}, against {against} in unquantized float32",
        f"{quality.text}: {quality.positions} of {quality.text_tokens} tokens predicted, windows of {quality.window}",
        "",
        f"bits per weight      {quality.size.bits_per_weight:.2f} ({_megabytes(quality.size)})",
        f"KL divergence        {kl.mean:.4g}{error} nats",
        f"                     median {kl.median:.4g}, 99th percentile {kl.percentile_99:.4g}, most {kl.maximum:.4g}",
        f"same likeliest token {quality.top1_agreement:.2f} %",
        f"perplexity           {quality.perplexity:.4f} (baseline {quality.baseline_perplexity:.4f})",
    ]
    if quality.interrupted:
        lines.append("interrupted: these are the numbers of the tokens so far")
    print("\n".join(lines), file=file)


def _megabytes(size: Size) -> str:
    return f"{size.nbytes / 1e6:.1f} MB"

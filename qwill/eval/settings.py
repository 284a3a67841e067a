"""What an evaluation can be told. Torch-free, so that a mistyped flag is answered at once."""

from __future__ import annotations

from dataclasses import dataclass

from qwill.settings import check_settings, setting

__all__ = ["KLSettings"]


@dataclass(frozen=True)
class KLSettings:
    """What is compared, and on how much. The model's own settings (quant, dtype, threads …) are `EngineSettings`."""

    baseline: str | None = setting(
        None, "model to compare with, in unquantized float32; by default the evaluated model itself"
    )
    text_tokens: int | None = setting(
        None, "tokens of the text to use, from its beginning; by default all", unit="tokens", low=2, high=2**24
    )

    def __post_init__(self) -> None:
        check_settings(self)

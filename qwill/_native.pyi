from collections.abc import Sequence

def instruction_sets() -> list[str]:
    """Names of the instruction sets that run here, best first."""

class Kernels:
    @property
    def isa(self) -> str: ...

def kernels(arg: str, /) -> Kernels:
    """The kernels of one instruction set; "" is the best one."""

class Pool:
    def __init__(self, arg: int, /) -> None: ...
    @property
    def threads(self) -> int: ...

class Program:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def run(self, arg: Pool, /) -> None: ...

class Weight:
    def __init__(self) -> None: ...
    def add(self, arg0: Sequence[int], arg1: int, arg2: int, arg3: int, arg4: int, /) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...

def linear(
    pool: Pool,
    program: Program | None,
    kernels: Kernels,
    weight: Weight,
    x: int,
    x_stride: int,
    tokens: int,
    y: int,
    bias: int,
    residual: int,
    residual_stride: int,
) -> None: ...
def embedding(
    pool: Pool, program: Program | None, kernels: Kernels, weight: Weight, ids: int, tokens: int, out: int
) -> None: ...
def rms_norm(
    pool: Pool,
    program: Program | None,
    kernels: Kernels,
    x: int,
    tokens: int,
    heads: int,
    size: int,
    token_stride: int,
    head_stride: int,
    weight: int,
    eps: float,
    y: int,
) -> None: ...
def rope(
    pool: Pool,
    program: Program | None,
    kernels: Kernels,
    x: int,
    tokens: int,
    heads: int,
    size: int,
    token_stride: int,
    head_stride: int,
    cos: int,
    sin: int,
    y: int,
) -> None: ...
def norm_rope(
    pool: Pool,
    program: Program | None,
    kernels: Kernels,
    x: int,
    tokens: int,
    heads: int,
    size: int,
    token_stride: int,
    head_stride: int,
    weight: int,
    eps: float,
    cos: int,
    sin: int,
    y: int,
) -> None: ...
def rotary_angles(
    pool: Pool,
    program: Program | None,
    positions: int,
    tokens: int,
    frequencies: int,
    size: int,
    amplitude: float,
    cos: int,
    sin: int,
) -> None: ...
def silu_and_mul(
    pool: Pool, program: Program | None, kernels: Kernels, gate_up: int, tokens: int, features: int, y: int
) -> None: ...
def add(pool: Pool, program: Program | None, kernels: Kernels, a: int, b: int, count: int, y: int) -> None: ...
def argmax(
    pool: Pool, program: Program | None, kernels: Kernels, x: int, rows: int, columns: int, places: int
) -> None: ...
def rows(pool: Pool, program: Program | None, x: int, places: int, rows: int, columns: int, y: int) -> None: ...
def read(pool: Pool, kernels: Kernels, x: int, count: int) -> None:
    """Read floats with all threads, to measure how fast it is."""

class CacheLayer:
    def __init__(
        self, keys: int, values: int, key_scales: int, value_scales: int, block_size: int, type: int
    ) -> None: ...

def attention(
    pool: Pool,
    program: Program | None,
    kernels: Kernels,
    sizes: Sequence[int],
    scale: float,
    qkv: Sequence[Sequence[int]],
    out: int,
    metadata: Sequence[int],
    tables: Sequence[int],
    cache: CacheLayer | None,
) -> None: ...

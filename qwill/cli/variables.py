"""Environment variables that are no flags: each with its meaning, for `qwill doctor` and the reference page.

The variables of settings, QWILL_ and a flag's name, are layers.py's. Where a variable is read is its reader's business;
a test finds every one that the code reads, and that is not listed here.
"""

from __future__ import annotations

__all__ = ["VARIABLES"]

VARIABLES: dict[str, str] = {
    "QWILL_HOME": "folder for models that do not come from Hugging Face; by default qwill in the user's cache folder",
    "QWILL_OPS": "native or reference: which implementation of the ops runs; by default native where it was built",
    "QWILL_ISA": "instruction set of the native kernels: avx512, avx2_vnni, avx2 or baseline; by default the best one",
    "QWILL_FAULT": "makes one request fail on purpose, as a test that others do not notice: model:REQUEST, sample:#3",
    "QWILL_NOTEBOOK_MODEL": "the model that the notebooks run on; by default tiny, which is in the package",
    "OMP_NUM_THREADS": "threads of PyTorch's own pool, where --threads is not given",
    "HF_HOME": "huggingface_hub's folder, whose hub/ is the cache of models",
    "HF_HUB_CACHE": "the cache itself, wherever it is",
    "HF_ENDPOINT": "address of a mirror of Hugging Face",
    "HF_TOKEN": "token for Hugging Face, sent to its endpoint only",
    "HF_HUB_OFFLINE": "1, ON, YES or TRUE: never use the network",
    "TRANSFORMERS_OFFLINE": "the same",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1, ON, YES or TRUE: no progress bars",
    "HF_HUB_DOWNLOAD_TIMEOUT": "seconds that a download may stand still; by default 10",
    "HF_HUB_ETAG_TIMEOUT": "seconds that a question to a hub may take; by default 10",
    "MODELSCOPE_ENDPOINT": "address of a mirror of ModelScope",
    "MODELSCOPE_DOMAIN": "the same, where MODELSCOPE_ENDPOINT is not set",
    "MODELSCOPE_API_TOKEN": "token for ModelScope, sent to its endpoint only",
    "XDG_CACHE_HOME": "the user's cache folder, where QWILL_HOME is not set; by default ~/.cache",
    "XDG_CONFIG_HOME": "holds qwill/config.toml; by default ~/.config",
    "XDG_STATE_HOME": "holds typed lines and saved conversations; by default ~/.local/state",
    "LOCALAPPDATA": "on Windows, holds configuration and state",
    "HTTPS_PROXY": "proxy for downloads; HTTP_PROXY, ALL_PROXY and NO_PROXY count too, in either case",
    "NO_COLOR": "if set: no colours",
    "TERM": "dumb: no bars, and nothing else that moves the cursor",
}
"""Name -> meaning; ours first."""

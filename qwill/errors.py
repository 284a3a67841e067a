"""Every exception that qwill raises on purpose. Torch-free; imports nothing of ours.

    QwillError                      what went wrong, where, and a hint: what to do
    ├── UsageError                  the caller asked for something that cannot be (exit code 2)
    │   ├── SettingError            a setting's value is outside its allowed range
    │   ├── PromptError             empty prompt, ids out of range
    │   │   └── ContextLengthError  prompt longer than the context
    │   └── RequestError            a request of OpenAI's API breaks its rules
    ├── ModelNotFoundError          no such name, folder, file or revision
    ├── DownloadError               a source could not deliver
    │   ├── SourceUnreachableError  no connection within the time limit
    │   ├── AccessError             401, 403, gated
    │   ├── IntegrityError          size or sha256 differs from what was promised
    │   └── DiskSpaceError          not enough free space
    ├── FormatError                 a model file breaks its format's rules: file, offset, tensor
    ├── ConfigError                 config.json or GGUF metadata is wrong or contradicts itself
    │   └── UnsupportedModelError   valid, but something qwill does not implement
    ├── WeightsError                missing, unused or wrong-shape tensors
    ├── TokenizerError              the tokenizer's files are wrong or of an unsupported kind
    ├── TemplateError               a chat template failed or broke a limit
    ├── TensorError                 an op was given tensors of a shape, dtype, layout or range it cannot take
    ├── ModelError                  the model computed non-finite logits
    ├── CapacityError               not enough memory for the weights or the KV cache
    ├── OverloadedError             the waiting queue is full: try again later
    ├── DeadlineError               a request's time was up before its answer was complete
    ├── EngineError                 computing a request failed for a reason that nobody foresaw
    └── BenchmarkError              a comparison that would not be fair, or whose results differ

An error's text is three parts, each at most a few lines: `what` (one sentence), `where` (file,
offset, tensor or parameter; may be empty) and `hint` (the next thing to try; may be empty).
"""

from __future__ import annotations


class QwillError(Exception):
    """Base of all errors that qwill raises on purpose.

    `exit_code` is what the command line ends with when this error reaches it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at {self.where}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class UsageError(QwillError):
    """The caller asked for something that cannot be."""

    exit_code = 2


class SettingError(UsageError, ValueError):
    """A setting's value is of the wrong type or outside its allowed range."""


class PromptError(UsageError, ValueError):
    """The prompt is empty, not text, or holds token ids outside the vocabulary."""


class ContextLengthError(PromptError):
    """The prompt is longer than the context."""


class RequestError(UsageError, ValueError):
    """A request breaks a rule of OpenAI's API. `where` is the field at fault, `code` names the fault for programs."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", code: str = "invalid_value") -> None:
        super().__init__(what, where=where, hint=hint)
        self.code = code


class ModelNotFoundError(QwillError):
    """No such catalog name, repository, revision, folder or file."""


class DownloadError(QwillError):
    """A source could not deliver a file."""


class SourceUnreachableError(DownloadError):
    """No connection to the source within the time limit."""


class AccessError(DownloadError):
    """The source refused: not logged in, no permission, or a gated repository."""


class IntegrityError(DownloadError):
    """What arrived has another size or sha256 than was promised."""


class DiskSpaceError(DownloadError):
    """Not enough free space for the download."""


class FormatError(QwillError):
    """A model file breaks the rules of its format."""


class ConfigError(QwillError):
    """A model's configuration is wrong or contradicts itself."""


class UnsupportedModelError(ConfigError):
    """A valid configuration that asks for something qwill does not implement."""


class WeightsError(QwillError):
    """The checkpoint's tensors are not the ones the configuration asks for."""


class TokenizerError(QwillError):
    """The tokenizer's files are wrong or of a kind that qwill does not implement."""


class TemplateError(QwillError):
    """A chat template failed, or broke a limit of the sandbox."""


class TensorError(QwillError):
    """An op was given tensors of a shape, dtype, memory layout or range of values that it cannot compute with."""


class ModelError(QwillError):
    """The model computed logits that are not finite."""


class CapacityError(QwillError):
    """Not enough memory for the weights or for the KV cache."""


class OverloadedError(QwillError):
    """The waiting queue is full."""


class DeadlineError(QwillError):
    """A request's time was up before its answer was complete."""


class EngineError(QwillError):
    """Computing a request failed for a reason that nobody foresaw; the cause is chained."""

    @classmethod
    def unforeseen(cls, error: BaseException, *, where: str = "") -> EngineError:
        """The typed error for an exception of any other kind."""
        told = cls(
            f"computing this request failed: {type(error).__name__}: {error!s:.200}",
            where=where,
            hint="this is a defect of qwill: please report it with the traceback",
        )
        told.__cause__ = error
        return told


class BenchmarkError(QwillError):
    """A comparison that would not be fair, or whose results differ."""

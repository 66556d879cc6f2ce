"""Every exception that Trifolium raises on purpose.

    TrifoliumError
    ├── UsageError             what the caller asked for can't be done as asked
    │   ├── ConfigError        a config, recipe or option has an unknown key or a bad value
    │   ├── PromptError        empty prompt, or longer than the context
    │   ├── TemplateError      a chat template is broken, hostile, or refuses the messages
    │   ├── ToolError          a tool, or a call of one, that can't be used; names the place
    │   ├── ConstraintError    a schema, regex or grammar can't be used, or leaves no way to go on
    │   └── QuestionError      a typed question, or a joint group of them, that can't be asked; names the place
    ├── NotFoundError          an unknown model, adapter or file; the message lists the nearest names
    ├── CheckpointError        a model, tokenizer or adapter file that can't be used
    │   ├── CorruptFileError   truncated, damaged, not the format it claims, or a pickle
    │   ├── TensorMismatchError    tensors missing, unexpected or mis-shaped; lists them
    │   ├── UnsupportedModelError  an architecture or feature that is not implemented
    │   └── AdapterMismatchError   an adapter that was made for another base model
    ├── DownloadError          every source of a model failed; lists what each one said
    ├── ServerError            a server refused a request of `trifolium.client`, or broke off
    ├── NumericalError         NaN or infinity turned up while a model ran; names the layer
    └── TrainingError          training can't go on; the last checkpoint is intact

The command line turns any of them into one clear line and exit code 2; anything else is a bug and shows a traceback.
"""

from __future__ import annotations

from typing import Self

__all__ = [
    "AdapterMismatchError",
    "CheckpointError",
    "ConfigError",
    "ConstraintError",
    "CorruptFileError",
    "DownloadError",
    "NotFoundError",
    "NumericalError",
    "PromptError",
    "QuestionError",
    "ServerError",
    "TemplateError",
    "TensorMismatchError",
    "TrainingError",
    "TrifoliumError",
    "UnsupportedModelError",
    "UsageError",
]


class TrifoliumError(Exception):
    """Base of all errors that Trifolium raises on purpose."""


class UsageError(TrifoliumError):
    """What the caller asked for can't be done as asked."""


class ConfigError(UsageError):
    """A config, recipe or option has an unknown key or a bad value."""


class PromptError(UsageError):
    """The prompt is empty, or longer than the model's context."""


class PlacedError(UsageError):
    """A part of a request is at fault. `where`: its place in the request."""

    def __init__(self, message: str, where: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.where = where

    def under(self, *place: str | int) -> Self:
        """The same fault, told by someone who knows that its place lies under this one."""
        return type(self)(str(self), (*place, *self.where))


class QuestionError(PlacedError):
    """A typed question, or a joint group of them, can't be asked."""


class ToolError(PlacedError):
    """A tool, or a call of one, can't be used."""


class TemplateError(UsageError):
    """A chat template is broken, hostile, or refuses the messages."""


class ConstraintError(UsageError):
    """A schema, regex or grammar can't be used, or leaves no way to go on."""


class NotFoundError(TrifoliumError):
    """An unknown model, adapter or file; the message lists the nearest names."""


class CheckpointError(TrifoliumError):
    """A model, tokenizer or adapter file can't be used."""


class CorruptFileError(CheckpointError):
    """The file is truncated, damaged, not the format that it claims, or a pickle."""


class TensorMismatchError(CheckpointError):
    """Tensors are missing, unexpected or mis-shaped; the message lists them."""


class UnsupportedModelError(CheckpointError):
    """The architecture, or a feature of it, is not implemented."""


class AdapterMismatchError(CheckpointError):
    """The adapter, or the skills, were made for another base model."""


class DownloadError(TrifoliumError):
    """Every source of a model failed; the message lists what each one said."""


class ServerError(TrifoliumError):
    """A server refused a request of `trifolium.client`, can't be reached, or broke off.

    `status`: of the HTTP response, None once the answer had begun. `code`: the server's word for programs.
    """

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class NumericalError(TrifoliumError):
    """NaN or infinity turned up while a model ran; the message names the layer."""


class TrainingError(TrifoliumError):
    """Training can't go on; the last checkpoint is intact."""

"""Instruction tokeniser for policies that follow instructions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.errors import PolicyError, require

_BEGIN = "<bos>"


class InstructionTokenizer(nn.Module):
    """Turns texts into L = `length` token ids, with padding; caches each text.

    The file, a `tokenizer.json` of the tokenizers library, is a buffer. It is saved with the
    weights, so a checkpoint is complete and its JSON description has no vocabulary.
    """

    file: Tensor

    def __init__(self, file_bytes: int, length: int) -> None:
        super().__init__()
        self.length = int(length)
        self.register_buffer("file", torch.zeros(int(file_bytes), dtype=torch.uint8))
        self._known: dict[str, list[int]] = {}
        self._tokenizer: Any = None

    @classmethod
    def of_file(cls, content: bytes, length: int) -> InstructionTokenizer:
        """Make a tokeniser from the content of a `tokenizer.json`."""
        tokenizer = cls(len(content), length)
        tokenizer.file.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return tokenizer

    @property
    def vocabulary(self) -> int:
        """Number of text token ids, without added ids for images and so on."""
        return int(self._loaded().get_vocab_size(with_added_tokens=False))

    def forward(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokenise B instructions: token ids (B, L) int64, and mask (B, L) bool, false at padding.

        Raises:
            PolicyError: An instruction is empty, has more than L tokens or a token that is not
                text, or the tokeniser has no begin token.
        """
        tokens = np.zeros((len(instructions), self.length), np.int64)
        mask = np.zeros(tokens.shape, np.bool_)
        for row, text in enumerate(instructions):
            if text not in self._known:
                self._known[text] = self._encode(text)
            ids = self._known[text]
            tokens[row, : len(ids)] = ids
            mask[row, : len(ids)] = True
        device = self.file.device
        return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)

    def _encode(self, text: str) -> list[int]:
        if not text.strip():
            raise PolicyError(
                "the episode has no instruction",
                got=repr(text),
                expected="what the robot is to do, in words",
                hint="record with task.environment.instruction=TEXT, or take another policy",
            )
        # The models were trained with a begin token, which not every file adds, and with
        # instructions that end with a line break.
        line = text if text[-1] == "\n" else f"{text}\n"
        encoded = self._loaded().encode(line, add_special_tokens=False)
        begin = self._loaded().token_to_id(_BEGIN)
        if begin is None:
            raise PolicyError(
                "the tokeniser has no begin token",
                expected=_BEGIN,
                hint="name the model's own with policy.tokenizer=PATH",
            )
        ids = [int(begin), *map(int, encoded.ids)]
        if max(ids) >= self.vocabulary:
            added = [t for t, i in zip(encoded.tokens, encoded.ids, strict=True) if i == max(ids)]
            raise PolicyError(
                f"the instruction {text!r} holds a token that is no text",
                got=added[0],
                expected="words",
                hint="write it in other words",
            )
        if len(ids) > self.length:
            raise PolicyError(
                f"the instruction {text!r} is too long",
                got=f"{len(ids)} tokens",
                expected=f"at most policy.instruction_tokens={self.length}",
                hint="shorten it, or train with more instruction_tokens",
            )
        return ids

    def _loaded(self) -> Any:
        if self._tokenizer is None:  # the file is loaded after the module is made
            tokenizers = require("tokenizers", "vla")
            content = self.file.cpu().numpy().tobytes()
            try:
                self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
            except Exception as error:  # the library raises no narrower class
                raise PolicyError(
                    "the tokeniser cannot be read",
                    got=error,
                    expected="a tokenizer.json of the library tokenizers",
                ) from error
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
        return self._tokenizer


def read_tokenizer(source: str) -> bytes:
    """Read `tokenizer.json` from a folder or a repository on the hub.

    Raises:
        PolicyError: There is no such file.
    """
    path = Path(source) / "tokenizer.json"
    if not Path(source).is_dir():
        hub = require("huggingface_hub", "vla")
        try:
            path = Path(hub.hf_hub_download(source, "tokenizer.json"))
        except (OSError, ValueError) as error:
            raise PolicyError(
                f"no tokenizer.json can be had from {source!r}",
                got=" ".join(str(error).split())[:200],
                expected="a folder, or the id of a repository on the hub",
                hint="name one that has it with policy.tokenizer=PATH",
            ) from error
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolicyError(
            f"{path} cannot be read",
            got=error.strerror,
            hint="put the model's there, or name its folder with policy.tokenizer=PATH",
        ) from error

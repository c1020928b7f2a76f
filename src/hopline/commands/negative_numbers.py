"""Commands that accept negative numbers as arguments: `hopline score risk -10`."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperOption

_NUMBER = re.compile(r"-\d[\d.,+-]*")


class NumbersAreValues(TyperCommand):
    """A command in which a word such as -10 or -10,-12 is a value and not an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as the base class does, with all values moved behind "--" in their order."""
        if not any(_NUMBER.fullmatch(word) for word in args):
            return super().parse_args(ctx, args)
        takes_one = {
            name
            for each in self.params
            if isinstance(each, TyperOption) and not each.is_flag
            for name in each.opts
        }
        options: list[str] = []
        values: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                values += words
            elif word in takes_one:
                value = next(words, None)
                if value is None:
                    return super().parse_args(ctx, [*options, word])  # reports the missing value
                options += [word, value]
            elif word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word):
                options.append(word)
            else:
                values.append(word)
        return super().parse_args(ctx, [*options, "--", *values])

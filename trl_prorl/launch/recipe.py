"""Reading a recipe into dataclasses."""

import argparse
import dataclasses
import os
import typing

from trl import TrlParser

from ..errors import InputError
from .recipe_check import check_options, check_recipe, fits, nearest, read_recipe, recipe_hint, spelt


__all__ = ["RecipeParser", "fits", "nearest", "spelt"]


class Given(argparse.Namespace):
    """The keys that were given. HfArgumentParser deletes those too that were not."""

    def __delattr__(self, key):
        vars(self).pop(key, None)


class RecipeParser(TrlParser):
    """
    A [`~trl.TrlParser`] whose complaints, of misspelt keys and wrong types too, are a `ValueError` of one line, and
    which makes the dataclasses by the keys that were given alone.
    """

    def parse_known_args(self, args=None, namespace=None):
        return super().parse_known_args(args, namespace or Given())

    def error(self, message):
        raise ValueError(message)

    def parse_args_and_config(self, args, **kwargs):
        args = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
        check_options(args, {"--config"} | {flag for action in self._actions for flag in action.option_strings})
        self.set_defaults_with_config(**{action.dest: argparse.SUPPRESS for action in self._actions})
        if "--config" in args:
            place = args.index("--config")
            path = args[place + 1]
            check_recipe(path, self.hints())
            recipe = read_recipe(path)
            os.environ.update({key: str(value) for key, value in (recipe.pop("env", None) or {}).items()})
            self.set_defaults_with_config(**recipe)  # as TrlParser does, which knows no base
            args = args[:place] + args[place + 2 :]
        try:
            return super().parse_args_and_config(args, **kwargs)
        except ValueError as error:
            raise InputError(str(error)) from error
        except (TypeError, AttributeError, ArithmeticError, ImportError) as error:  # TRL's and transformers' checks
            raise InputError(f"a value is of the wrong kind: {type(error).__name__}: {error}.") from error

    def hints(self) -> dict[str, typing.Any]:
        """The type of every key."""
        found = {}
        for dataclass_type in self.dataclass_types:
            types_by_name = typing.get_type_hints(dataclass_type)
            for field in dataclasses.fields(dataclass_type):
                if field.init:
                    found[field.name] = recipe_hint(field.name, types_by_name[field.name])
        return found

"""Reading a recipe into dataclasses."""

import argparse
import dataclasses
import os
import typing

from trl import TrlParser

from ..errors import InputError
from .recipe_check import BARE, check_config_option, check_options, check_recipe


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
        args = check_config_option(args)
        check_options(args, {"--config"} | {flag for action in self._actions for flag in action.option_strings})
        self.set_defaults_with_config(**{action.dest: argparse.SUPPRESS for action in self._actions})
        if "--config" in args:
            place = args.index("--config")
            recipe = check_recipe(args[place + 1], self.hints())
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
        """The type of every key, as a recipe may spell it."""
        found = {}
        for dataclass_type in self.dataclass_types:
            hints = typing.get_type_hints(dataclass_type)
            found |= {field.name: hints[field.name] for field in dataclasses.fields(dataclass_type) if field.init}
        return found | {name: found[name] | bool for name in BARE if name in found}

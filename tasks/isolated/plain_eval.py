"""
An `eval` for answers: numbers, lists and formulas, and nothing that could reach the scorer.

A plain `eval` would give an answer control of the process, and with it of the score. So libraries that call `eval` on
an answer get this function in its place.
"""

import ast
import builtins
import sys
from collections.abc import Callable

from sympy import Basic


NODES = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop),
    *(ast.Call, ast.keyword, ast.Name),
)
BUILTINS = ("abs", "bool", "complex", "float", "int", "max", "min", "pow", "round", "sum")
FUNCTIONS = ("cbrt", "root", "sqrt")  # sympy's, beside its classes

# Unevaluated calculations: otherwise the integral of a question would be its own antiderivative.
UNEVALUATED = ("Derivative", "Integral", "Limit", "Product", "Subs", "Sum")


def check_plain(source: str, names: dict) -> None:
    """
    Raise `ValueError` unless an expression is made of constants, operators, containers, and calls of plain names. A
    name is plain if it is one of a few functions, or a class or an object of sympy but no unevaluated calculation.
    There are no attributes, so nothing leads from these names to anything else.
    """
    for node in ast.walk(ast.parse(source.strip(), mode="eval")):
        if not isinstance(node, NODES):
            raise ValueError(f"{type(node).__name__} in an answer")
        if isinstance(node, ast.Name):
            if not is_plain_name(node.id, names.get(node.id)):
                raise ValueError(f"the name {node.id} in an answer")


def is_plain_name(name: str, value: object) -> bool:
    """Return whether a name with this value may stand in an expression; see [`check_plain`]."""
    if name in UNEVALUATED:
        return False
    if name in FUNCTIONS or isinstance(value, Basic):
        return True
    if isinstance(value, type) and issubclass(value, Basic):
        return True
    return name in BUILTINS and value in (None, getattr(builtins, name))


def guard(modules: tuple[str, ...]) -> None:
    """
    Make `eval` refuse an expression that is not plain if a module whose name starts with one of these calls it on a
    text.
    """
    builtins.eval = guarded(builtins.eval, modules)


def guarded(evaluate: Callable, modules: tuple[str, ...]) -> Callable:
    """Return the `eval` that [`guard`] puts in the place of Python's."""

    def plain_eval(source, *scopes):
        caller = sys._getframe(1)
        scopes = scopes or (caller.f_globals, caller.f_locals)
        if isinstance(source, str) and caller.f_globals.get("__name__", "").startswith(modules):
            names = {}
            for scope in scopes:
                names.update(scope)
            check_plain(source, names)
        return evaluate(source, *scopes)

    return plain_eval

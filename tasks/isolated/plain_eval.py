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
            value = names.get(node.id)
            of_sympy = isinstance(value, Basic) or (isinstance(value, type) and issubclass(value, Basic))
            if node.id in UNEVALUATED or not (
                of_sympy
                or node.id in FUNCTIONS
                or (node.id in BUILTINS and value in (None, getattr(builtins, node.id)))
            ):
                raise ValueError(f"the name {node.id} in an answer")


def guard(modules: tuple[str, ...]) -> None:
    """
    Make `eval` refuse an expression that is not plain if a module whose name starts with one of these calls it on a
    text.
    """
    builtins.eval = guarded(builtins.eval, modules)


def guarded(evaluate: Callable, modules: tuple[str, ...]) -> Callable:
    def plain_eval(source, *scopes):
        caller = sys._getframe(1)
        scopes = scopes or (caller.f_globals, caller.f_locals)
        if isinstance(source, str) and caller.f_globals.get("__name__", "").startswith(modules):
            check_plain(source, {name: value for scope in scopes for name, value in scope.items()})
        return evaluate(source, *scopes)

    return plain_eval

"""
A restricted `eval` for answers: numbers, lists and formulas, but nothing that could manipulate the scorer.

Python's `eval` would give an answer control over the process, and so over the score. Libraries that call `eval` on an
answer get this function instead.
"""

import ast
import builtins
import sys

from sympy import Basic


NODES = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop),
    *(ast.Call, ast.keyword, ast.Name),
)
BUILTINS = ("abs", "bool", "complex", "float", "int", "max", "min", "pow", "round", "sum")
FUNCTIONS = ("cbrt", "root", "sqrt")  # functions of sympy, in addition to its classes

# Unevaluated calculations. If they were allowed, the integral of a question would be its own antiderivative.
UNEVALUATED = ("Derivative", "Integral", "Limit", "Product", "Subs", "Sum")


def check_plain(source: str, names: dict) -> None:
    """
    Raise `ValueError` unless an expression consists of constants, operators, containers, and calls of plain names. A
    plain name is one of a few functions, or a class or object of sympy that is not an unevaluated calculation.
    Attributes are not allowed, so these names give access to nothing else.
    """
    for node in ast.walk(ast.parse(source.strip(), mode="eval")):
        if not isinstance(node, NODES):
            raise ValueError(f"{type(node).__name__} in an answer")
        if isinstance(node, ast.Name) and not is_plain_name(node.id, names.get(node.id)):
            raise ValueError(f"the name {node.id} in an answer")


def is_plain_name(name: str, value: object) -> bool:
    """Return whether a name with this value is allowed in an expression; see [`check_plain`]."""
    if name in UNEVALUATED:
        return False
    if name in FUNCTIONS or isinstance(value, Basic):
        return True
    if isinstance(value, type) and issubclass(value, Basic):
        return True
    return name in BUILTINS and value in (None, getattr(builtins, name))


def guard(modules: tuple[str, ...]) -> None:
    """
    Make `eval` raise an error for text that is not plain, if the calling module's name starts with one of `modules`.
    """
    evaluate = builtins.eval

    def plain_eval(source, *scopes):
        caller = sys._getframe(1)
        scopes = scopes or (caller.f_globals, caller.f_locals)
        if isinstance(source, str) and caller.f_globals.get("__name__", "").startswith(modules):
            check_plain(source, {**scopes[0], **scopes[-1]})
        return evaluate(source, *scopes)

    builtins.eval = plain_eval

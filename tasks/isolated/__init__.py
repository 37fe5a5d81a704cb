"""
Scripts that run in separate processes, with the standard library and at most the one library that they wrap.

They are started by path and import nothing from `tasks`, so they start fast. In this separate folder `tasks/code.py`
and similar files do not shadow modules of the standard library. `tasks` imports
`latex.py` and `units.py`, too.
"""

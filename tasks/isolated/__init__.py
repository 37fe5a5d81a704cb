"""
Scripts that run in separate processes, with the standard library (and the one library that each serves).

They are started by their path and import nothing of `tasks`, so that they start fast. In a separate folder,
`tasks/code.py` and similar files do not hide modules of the standard library from them.
"""

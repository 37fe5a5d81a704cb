"""
What runs in processes of its own: scripts of the standard library (and the one library each of them is for).

They are started by their path and import nothing of `tasks`, so that they start fast. Being in a folder of their own
keeps `tasks/code.py` and the like from hiding modules of the standard library.
"""

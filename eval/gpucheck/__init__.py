"""
What `trl-prorl gpu-check` measures and checks on a GPU: a file for each part, and the parts' list in `parts.py`.
"""

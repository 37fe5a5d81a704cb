"""
The study: which runs (`matrix`), how they are trained one after another and frozen at a commit (`runner`), the tables
that they leave (`tables`), and what follows from the tables (`differences`, `pages`, `pictures`).
"""

"""Before the first step: command line, recipe, checks, and what TRL's trainer has to be given."""

"""`python -m trl_prorl.embedded`: see [`~trl_prorl.embedded.making`]."""

from .making import main


main()
